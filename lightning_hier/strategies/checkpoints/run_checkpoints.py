"""Saves the state of all ranks beside a checkpoint, in an order that never leaves half of one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.strategies.checkpoints.atomic_io import finish_writing
from lightning_hier.strategies.checkpoints.rank_files import (
    FORMAT,
    SECTION,
    Part,
    RankFiles,
    State,
    remove_folder,
    section_of,
)
from lightning_hier.strategies.checkpoints.resume import resume
from lightning_hier.strategies.checkpoints.saved_run import SavedRun

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession

_SAVE = "a save of a checkpoint"
_PLAIN = (
    "it holds no state of this package (it was saved after a stage other than fit, by another "
    "strategy, or by an older version), so training goes on from its model and optimizers with a "
    "new block; the order of the data and the random numbers begin anew."
)


class RunCheckpoints:
    """Saves, removes and resumes checkpoints of a synchronous strategy.

    Args:
        strategy: of this rank.

    Attributes:
        numbers: automatic values of the run that is resumed, which keeps them however long it
            becomes.

    """

    def __init__(self, strategy: DDPStrategy) -> None:
        self._strategy = strategy
        self.numbers: Mapping[str, Any] = {}
        self._path = ""
        self._weights_only = True
        # Saves of this job by the path of the checkpoint on this rank, oldest first.
        self._saves: defaultdict[str, list[RankFiles]] = defaultdict(list)

    def note(self, path: str | Path, weights_only: bool | None, checkpoint: Any) -> None:
        """Note a checkpoint that has been read: a Tuner resumes from one of its own."""
        self._path, self._weights_only = str(path), weights_only is not False
        self.numbers = (section_of(checkpoint) or {}).get("numbers", {})

    def save(
        self,
        session: FitSession | None,
        checkpoint: dict[str, Any],
        path: str | Path,
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        """Save a checkpoint and the state of all ranks. A collective of the world.

        Args:
            session: of the run, if there is one.
            checkpoint: what Lightning saves; gets this package's section.
            path: of the checkpoint. That of rank 0 counts: a name with a metric that is not the
                same on all ranks differs from rank to rank.
            write: writes the checkpoint itself, on rank 0.

        Raises:
            OSError: on every rank, if any rank could not write. Partial files have been removed.

        """
        if session is None or not session.begun or "optimizer_states" not in checkpoint:
            self._write_everywhere(partial(write, checkpoint))
            return
        io, device = self._strategy.checkpoint_io, self._strategy.root_device
        session.synchroniser.local.keep_written_buffers()
        finish_writing(io)
        own = [f"{time.time_ns():020d}", str(path)]
        save, common = gather_json(own, device, place=_SAVE)[0]
        files = RankFiles(common, save)
        # Callbacks have put the tensors into the checkpoint that hold the average meanwhile.
        with session.averages.swapped_in():
            try:
                self._write_everywhere(lambda: _write_all(session.state.parts(), files, io))
                sizes = list(session.worker_layout.sizes)
                section = {"format": FORMAT, "save": save, "sizes": sizes, **session.state.shared()}
                checkpoint[SECTION] = section
                self._write_everywhere(partial(write, checkpoint))
            except OSError:
                if self._removes:
                    files.remove()
                raise
        saves = self._saves[str(path)]
        saves.append(files)
        # An asynchronous writer may not have replaced the checkpoint yet that names the older save.
        kept = 2 if isinstance(io, AsyncCheckpointIO) else 1
        old = [saves.pop(0) for _ in saves[kept:]]
        if self._removes:
            for own_files in old:
                own_files.remove()
            if len(saves) == kept:
                saves[0].remove_abandoned()

    def remove(self, path: str | Path) -> None:
        """Remove the state of all ranks beside a checkpoint that has been removed."""
        saves = self._saves.pop(str(path), None)
        if not self._removes:
            return
        if saves is None:
            remove_folder(f"{path}.ranks")  # of an earlier job
        for files in saves or ():
            files.remove()

    def resume(self, session: FitSession, checkpoint: Mapping[str, Any]) -> bool:
        """Resume the run that was saved. A collective of the world: every rank must call it.

        Returns:
            False if the checkpoint has no state of this package; a warning says so.

        """
        section = section_of(checkpoint)
        if section is None:
            rank_zero_warn(f"Resuming from {self._path}: {_PLAIN}")
            return False
        files = RankFiles.saved_with(self._path, section["save"])
        saved = SavedRun(section, files, self._strategy.checkpoint_io, self._weights_only)
        saved.require_complete(session.communicators.device)
        if files.of_all_saves == f"{self._path}.ranks":  # else of the target of a link
            self._saves[self._path].append(files)
        resume(saved, checkpoint, session)
        return True

    @property
    def _removes(self) -> bool:
        """Whether this rank removes files: one of each host, as it may have a disk of its own."""
        return self._strategy.local_rank == 0

    def _write_everywhere(self, write: Callable[[], None]) -> None:
        """Write on the ranks that do, and have all know whether it was done.

        A collective of the world.

        Raises:
            OSError: on every rank, if any rank could not write.

        """
        with raise_everywhere(self._strategy.root_device, error=OSError, place=_SAVE):
            _write(write)


def _write_all(
    parts: Iterable[tuple[Part, int, State]], files: RankFiles, io: CheckpointIO
) -> None:
    failed = None
    # To the end in any case: each worker has its model in the module while its state is read.
    for part, number, state in parts:
        try:
            _write(partial(io.save_checkpoint, state, files.path(part, number)))
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _write(write: Callable[[], None]) -> None:
    try:
        write()
    except OSError:
        raise
    except Exception as error:  # of pickle, about values of a callback
        raise OSError(
            f"the checkpoint could not be written: {type(error).__name__}: {error}"
        ) from error
