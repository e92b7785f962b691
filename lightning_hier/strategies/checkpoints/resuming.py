"""Goes on from a checkpoint on the same groups of ranks: exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO

from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO, base_io
from lightning_hier.strategies.checkpoints.integrity import DamagedFileError, damage_beside
from lightning_hier.strategies.checkpoints.rank_files import RankFiles
from lightning_hier.strategies.checkpoints.run_state import State
from lightning_hier.strategies.checkpoints.shares import Shares, can_be_cut


@dataclass(frozen=True)
class SavedRun:
    """A run that was saved, as one rank sees it.

    Attributes:
        section: this package's section of the checkpoint.
        files: those beside it.
        io: reads files.
        weights_only: whether types are refused that could run code.

    """

    section: Mapping[str, Any]
    files: RankFiles
    io: CheckpointIO
    weights_only: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """Ranks of a group, and groups, of the run that was saved."""
        devices, groups = self.section["sizes"]
        return devices, groups

    @property
    def ranks(self) -> int:
        """Number of ranks of the run that was saved."""
        return self.sizes[0] * self.sizes[1]

    def of_rank(self, rank: int) -> State:
        """What a rank has saved, on the CPU."""
        return self._read(self.files.path("rank", rank))

    def of_group(self, group: int) -> State:
        """What a group has saved, on the CPU."""
        return self._read(self.files.path("group", group))

    def blocks_of(self, group: int) -> Shares:
        """What each rank of a group has saved of its blocks, in order; empty where there are none.

        Of several virtual workers with one model the first has saved them.
        """
        first = group * self.sizes[0]
        workers = range(first, first + self.sizes[0])
        blocks = [self.of_rank(worker)["blocks"] for worker in workers]
        return [own for own in blocks if own is not None]

    def goes_on(self, sizes: tuple[int, ...], kinds: Mapping[str, Any]) -> bool:
        """Whether a run of such groups and kinds goes on exactly.

        The number of ranks of a group, and the division of the model among them, may differ if
        shares can be cut anew.
        """
        differ = self._differing(kinds)
        return self.sizes == sizes and (
            not differ or (differ <= {"sharded", "ranks_per_group"} and can_be_cut(kinds))
        )

    def shares_for(self, group: int, kinds: Mapping[str, Any]) -> Shares | None:
        """Shares of a group's ranks, where they have to be cut anew; None: they are the same."""
        return self.blocks_of(group) if self._differing(kinds) else None

    def _differing(self, kinds: Mapping[str, Any]) -> set[str]:
        saved = self.section["kinds"]
        return {name for name in kinds if kinds[name] != saved.get(name)}

    def require_complete(self, device: torch.device) -> None:
        """Check that all files of the save can be seen, and that none is damaged.

        A collective of the world, of which each rank reads a part of the files.

        Raises:
            FileNotFoundError: on every rank, naming a missing file.
            DamagedFileError: on every rank, naming a file that was cut off or has changed.

        """
        with raise_everywhere(device, error=FileNotFoundError):
            if missing := self.files.missing(self.sizes):
                raise FileNotFoundError(
                    f"the checkpoint is incomplete: {len(missing)} of the files that its ranks "
                    f"have written beside it are missing, among them {missing[0]}. It was cut off "
                    "while it was saved, or moved without its folder "
                    f"{self.files.folder}, or the folder is not shared by all hosts. Resume from "
                    "another checkpoint (lightning_hier.newest_checkpoint finds the newest "
                    "complete one), or begin a new run from its weights with load_from_checkpoint."
                )
        if not isinstance(base_io(self.io), AtomicCheckpointIO):
            return  # the format of its files is not known
        paths = self.files.paths(self.sizes)
        if dist.is_initialized():
            paths = paths[dist.get_rank() :: dist.get_world_size()]
        with raise_everywhere(device, error=DamagedFileError):
            if problem := damage_beside(paths, contents=True):
                raise DamagedFileError(
                    f"the checkpoint is damaged: {problem}. Put back a copy of the file, or move "
                    "the checkpoint away; lightning_hier.newest_checkpoint then takes the one "
                    "before it"
                )

    def _read(self, path: str) -> State:
        state: State = self.io.load_checkpoint(
            path, map_location=torch.device("cpu"), weights_only=self.weights_only
        )
        return state
