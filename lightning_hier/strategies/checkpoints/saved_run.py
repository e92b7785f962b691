"""A saved run: its files, the shards of the global model, and checks on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO

from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.comm.progress_record import named_ranks, ranks_by_value
from lightning_hier.strategies.checkpoints.integrity import DamagedFileError, missing_beside
from lightning_hier.strategies.checkpoints.rank_files import LOADING, RankFiles, State, section_of

_WAY_OUT = (
    "Every rank must read the same checkpoint: save to a directory that all hosts share (or a "
    "URL), or copy the checkpoint and its directory NAME.ckpt.ranks to every host"
)


@dataclass(frozen=True)
class SavedRun:
    """A saved run.

    Attributes:
        path: path of the checkpoint.
        section: section of this package in the checkpoint.
        files: files next to the checkpoint.
        io: plugin that loads files.
        weights_only: whether types that could run code are refused.

    """

    path: str
    section: Mapping[str, Any]
    files: RankFiles
    io: CheckpointIO
    weights_only: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of ranks in a group, and number of groups."""
        devices, groups = self.section["sizes"]
        return devices, groups

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.sizes[0] * self.sizes[1]

    def of_rank(self, rank: int) -> State:
        """State of a rank, on the CPU."""
        state: State = self.io.load_checkpoint(
            self.files.path(rank),
            map_location=torch.device("cpu"),
            weights_only=self.weights_only,
        )
        return state

    def require_complete(self, device: torch.device) -> None:
        """Check that all files of the save exist and are undamaged.

        A collective of the world. Each rank reads a part of the files.

        Raises:
            DamagedFileError: on every rank. The error names a missing, truncated or changed file,
                or one of another rank or save.

        """
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        with raise_everywhere(device, error=DamagedFileError):
            # Every rank looks for all files, because hosts may have different file systems.
            problem = missing_beside(self.files.paths(self.ranks))
            own = range(rank, self.ranks, world)
            problem = problem or next(filter(None, map(self._problem, own)), None)
            if problem is not None:
                raise DamagedFileError(
                    f"the checkpoint is incomplete or damaged: {problem}. Its directory "
                    f"{self.files.folder} must be next to it and visible on every host. Restore "
                    "the file from a copy, resume from another checkpoint "
                    "(lightning_hier.newest_checkpoint finds the newest complete one if this one "
                    "is moved away), or start a new run from its weights with load_from_checkpoint"
                )

    def _problem(self, rank: int) -> str | None:
        """Describe a file that is damaged or not that of this rank and save, or return None."""
        try:
            state: Any = self.of_rank(rank)
        except DamagedFileError as error:
            return str(error)
        found = (state.get("rank"), state.get("save")) if isinstance(state, dict) else (None, None)
        wanted = (rank, self.section["save"])
        if found == wanted:
            return None
        return (
            f"the file {self.files.path(rank)} must be that of rank {wanted[0]} of the save "
            f"{wanted[1]}, but is that of rank {found[0]} of the save {found[1]}: it was renamed, "
            "copied or changed"
        )

    @contextmanager
    def loading(self, rank: int, device: torch.device) -> Iterator[None]:
        """Turn an error in the body, which loads files of ranks, into one error on every rank.

        A collective of the world. The body must not communicate.

        Raises:
            DamagedFileError: on every rank.

        """
        with raise_everywhere(device, error=DamagedFileError, place=LOADING):
            try:
                yield
            except DamagedFileError:
                raise
            except Exception as error:  # contents may be of any type
                raise DamagedFileError(
                    f"the state in {self.files.path(rank)}, or in the checkpoint {self.path}, "
                    f"cannot be loaded: {type(error).__name__}: {error}. The file was changed, or "
                    "the module or its optimizers have changed: resume from another checkpoint, or "
                    "start a new run from its weights with load_from_checkpoint"
                ) from error


def read_same(read: Callable[[], dict[str, Any]] | None, device: torch.device) -> dict[str, Any]:
    """Load a checkpoint, and compare it with those of the other ranks.

    A collective of the world: every rank must call it.

    Args:
        read: function that loads the checkpoint, or None if this rank has none.
        device: device of collectives.

    Raises:
        OSError: on every rank, if no rank can read the checkpoint.
        ValueError: on every rank, if ranks resume from different checkpoints, or some of them from
            none, or if only some can read it.

    """
    checkpoint: dict[str, Any] = {}
    failed = None
    # Without paths, because hosts may have copies of one checkpoint at different paths.
    found = "start from the beginning, because they have no checkpoint"
    if read is not None:
        try:
            checkpoint = read()
            found = f"resume from {_described(checkpoint)}"
        except Exception as error:  # of any type, because the other ranks wait in the comparison
            failed, found = error, f"could not read it ({type(error).__name__})"
    ranks = ranks_by_value(gather_json(found, device, place="the comparison of checkpoints"))
    if len(ranks) > 1:
        listed = "; ".join(f"{named_ranks(numbers)} {text}" for text, numbers in ranks.items())
        problem = f"the ranks do not resume from the same checkpoint: {listed}. {_WAY_OUT}"
        raise ValueError(problem) from failed
    if failed is not None:
        raise failed  # no rank could read it, and each raises its own error
    return checkpoint


def _described(checkpoint: Mapping[str, Any]) -> str:
    """Description that identifies a checkpoint, independent of its path."""
    section = section_of(checkpoint)
    saved = "" if section is None else f", save of the checkpoint {section['save']}"
    return f"epoch {checkpoint.get('epoch')}, step {checkpoint.get('global_step')}{saved}"
