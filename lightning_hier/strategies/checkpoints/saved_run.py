"""A run that was saved: read by all ranks alike, its files, and the shards of the global model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from torch import Tensor

from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO, base_io
from lightning_hier.strategies.checkpoints.integrity import DamagedFileError, damage_beside
from lightning_hier.strategies.checkpoints.rank_files import RankFiles, State, section_of

Shares = Sequence[Sequence[Sequence[Mapping[str, Any]]]]
"""What each rank of a group has saved of its blocks, in order: of each block the parts."""

_WAY_OUT = (
    "Every rank must read the same checkpoint: save into a folder that all hosts share (or a URL), "
    "or copy the checkpoint, with its folder NAME.ckpt.ranks, to every host"
)


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
        # Error feedback and updates in flight are kept by shard too, and can't be cut.
        can_be_cut = not kinds["overlap"] and kinds["across_dtype"] in (None, "same")
        return self.sizes == sizes and (
            not differ or (differ <= {"sharded", "ranks_per_group"} and can_be_cut)
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


def joined(shares: Sequence[Mapping[str, Any]], name: str) -> Tensor | None:
    """A flat tensor of one part, whole; None where none is kept.

    Args:
        shares: of the ranks of a group, in order.
        name: as in :meth:`Fragment.state`.

    """
    own = [share[name] for share in shares if share.get(name) is not None]
    return torch.cat(own) if own else None


def cut_for(blocks: Sequence[ModelBlock], shares: Shares) -> list[list[dict[str, Any]]]:
    """What this rank would have saved if its group had divided the model as it does now."""
    return [
        [_cut([rank[index][i] for rank in shares], own) for i, own in enumerate(block.state())]
        for index, block in enumerate(blocks)
    ]


def _cut(shares: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(shares[0])
    for name, present in own.items():
        whole = joined(shares, name) if isinstance(present, Tensor) else None
        if whole is not None:
            start = own["carried_start" if name == "previous" else "start"]
            found[name] = whole[start : start + present.numel()]
    return found


def read_same(
    read: Callable[[], dict[str, Any]], path: str | Path, device: torch.device
) -> dict[str, Any]:
    """Read a checkpoint, and compare it with those of the other ranks.

    A collective of the world: every rank must call it, or ``read_nothing``.

    Args:
        read: reads it.
        path: of the checkpoint, as this rank calls it.
        device: of collectives.

    Raises:
        OSError: on every rank, if none can read it.
        ValueError: on every rank, if the ranks resume from different checkpoints, or some from
            none, or only some can read it.

    """
    checkpoint: dict[str, Any] = {}
    failed = None
    try:
        checkpoint = read()
        holds = _described(checkpoint)
        text = f"resume from {path} ({holds})"
    except Exception as error:
        failed, holds = error, None
        text = f"could not read {path} ({type(error).__name__}: {error})"
    _compare(holds, text, device, failed)
    if failed is not None:
        raise failed  # none could read it, and each raises its own error
    return checkpoint


def read_nothing(device: torch.device) -> None:
    """Compare with the other ranks that this one resumes from nothing.

    A collective of the world: every rank must call it, or ``read_same``.

    Raises:
        ValueError: on every rank, if another rank resumes from a checkpoint.

    """
    _compare("", "begin anew, since they were given no checkpoint", device)


def _described(checkpoint: Mapping[str, Any]) -> str:
    """What tells one checkpoint from another, wherever the file lies."""
    section = section_of(checkpoint)
    saved = "" if section is None else f", save of the checkpoint {section['save']}"
    return f"epoch {checkpoint.get('epoch')}, step {checkpoint.get('global_step')}{saved}"


def _compare(
    holds: str | None, text: str, device: torch.device, failed: Exception | None = None
) -> None:
    rows = gather_json([holds, text], device, place="the comparison of checkpoints")
    if len({own for own, _ in rows}) == 1:
        return
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank, (_, own) in enumerate(rows):
        ranks[own].append(rank)
    said = "; ".join(
        f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} {own}"
        for own, numbers in ranks.items()
    )
    problem = f"the ranks do not resume from the same checkpoint: {said}. {_WAY_OUT}"
    raise ValueError(problem) from failed
