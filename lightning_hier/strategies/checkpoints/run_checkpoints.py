"""Saves the state of all ranks with a checkpoint, in an order that keeps it complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import ParallelStrategy
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.callbacks.packages import both
from lightning_hier.comm.agreement import raise_everywhere
from lightning_hier.strategies.checkpoints.atomic_io import finish_writing
from lightning_hier.strategies.checkpoints.rank_files import (
    FORMAT,
    SAVING,
    SECTION,
    RankFiles,
    remove_folder,
    section_of,
)
from lightning_hier.strategies.checkpoints.saved_run import SavedRun

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession

_PLAIN = (
    "it contains no state of this package (it was saved after a stage other than fit, by another "
    "strategy, or by an older version). Training continues from its model and optimizers with a "
    "new block; random states and the order of the data start from the beginning."
)


class RunCheckpoints:
    """Saves, removes and resumes checkpoints of a synchronous strategy.

    Args:
        strategy: strategy of this rank.

    Attributes:
        automatic_values: numbers that ``"auto"`` stood for in the resumed run. They are kept even
            if the run is longer now.

    """

    def __init__(self, strategy: ParallelStrategy) -> None:
        self._strategy = strategy
        self.automatic_values: Mapping[str, Any] = {}
        self._path = ""
        self._weights_only = True
        # The last save of this job by this rank's path of its checkpoint.
        self._last: dict[str, RankFiles] = {}

    def note(self, path: str | Path, weights_only: bool | None, checkpoint: Any) -> None:
        """Record the checkpoint that was loaded last. A Tuner loads one of its own."""
        self._path, self._weights_only = str(path), weights_only is not False
        self.automatic_values = (section_of(checkpoint) or {}).get("automatic_values", {})

    def save(
        self,
        session: FitSession | None,
        checkpoint: dict[str, Any],
        path: str | Path,
        write: Callable[[dict[str, Any]], None],
        storage_options: Any | None,
    ) -> None:
        """Save a checkpoint and the state of all ranks. A collective of the world.

        Args:
            session: session of the run, if there is one.
            checkpoint: Lightning's checkpoint, to which the section of this package is added.
            path: path of the checkpoint. That of rank 0 is used.
            write: writes the checkpoint itself, on rank 0.
            storage_options: options of the user for the plugin that writes the files of the ranks.

        Raises:
            OSError: on every rank, if any rank could not write. Incomplete files are removed.

        """
        # After validate or test, or with save_weights_only: no run resumes from it.
        if session is None or "optimizer_states" not in checkpoint:
            self._write_everywhere(partial(write, checkpoint))
            return
        io = self._strategy.checkpoint_io
        # Hooks may have written buffers of the global model, which the local models keep.
        session.synchroniser.evaluation.keep_written_buffers()
        finish_writing(io)
        files = RankFiles.of_new_save(path, self._strategy.root_device)
        # The checkpoint of callbacks refers to tensors that contain the average at this time.
        with session.averages.swapped_in():
            try:
                # First the files of the ranks, on all of them: the checkpoint then names only files
                # that exist, and an interrupted save leaves the previous checkpoint as it was.
                rank = self._strategy.global_rank
                state = {"rank": rank, "save": files.save, **session.state.of_rank()}
                write_state = partial(io.save_checkpoint, state, files.path(rank), storage_options)
                self._write_everywhere(write_state)
                section = session.state.of_checkpoint()
                checkpoint[SECTION] = {"format": FORMAT, "save": files.save, **section}
                self._write_everywhere(partial(write, checkpoint))
            except OSError:
                if self._removes:
                    files.remove()
                raise
        # An asynchronous writer may not yet have replaced the checkpoint that names the save
        # before, which is unknown if it is that of an earlier job.
        waits, before = isinstance(io, both(AsyncCheckpointIO)), self._last.get(str(path))
        self._last[str(path)] = files
        if self._removes and not (waits and before is None):
            files.remove_others(before if waits else None)

    def remove(self, path: str | Path) -> None:
        """Remove the state of all ranks of a removed checkpoint."""
        files = self._last.pop(str(path), None)
        if self._removes:
            remove_folder(f"{path}.ranks" if files is None else files.of_all_saves)

    def resume(self, session: FitSession, checkpoint: Mapping[str, Any]) -> bool:
        """Resume the saved run. A collective of the world: every rank must call it.

        Returns:
            False if the checkpoint has no state of this package, with a warning.

        """
        section = section_of(checkpoint)
        if section is None:
            rank_zero_warn(f"Resuming from {self._path}: {_PLAIN}")
            session.synchroniser.trained.note_frozen()  # Lightning may have loaded them just now
            return False
        files = RankFiles.saved_with(self._path, section["save"])
        io = self._strategy.checkpoint_io
        saved = SavedRun(self._path, section, files, io, self._weights_only)
        saved.require_complete(session.communicators.device)
        if files.of_all_saves == f"{self._path}.ranks":  # otherwise files of the target of a link
            self._last[self._path] = files
        session.state.restore(saved, checkpoint)
        return True

    @property
    def _removes(self) -> bool:
        """Whether this rank removes files: one rank per host, as hosts may have local disks."""
        return self._strategy.local_rank == 0

    def _write_everywhere(self, write: Callable[[], None]) -> None:
        """Write on this rank if it writes, and share the outcome with all ranks.

        A collective of the world.

        Raises:
            OSError: on every rank, if any rank could not write.

        """
        with raise_everywhere(self._strategy.root_device, error=OSError, place=SAVING):
            _write(write)


def _write(write: Callable[[], None]) -> None:
    try:
        write()
    except OSError:
        raise
    except Exception as error:  # pickle raises errors of many types for values of callbacks
        raise OSError(
            f"the checkpoint could not be written: {type(error).__name__}: {error}"
        ) from error
