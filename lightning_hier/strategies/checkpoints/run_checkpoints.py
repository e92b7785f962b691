"""Checkpoints of a synchronous strategy, with the state of all ranks beside each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_hier.strategies.checkpoints.rank_files import RankFiles, remove_folder, section_of
from lightning_hier.strategies.checkpoints.rank_states import shared_state, states
from lightning_hier.strategies.checkpoints.resume import resume
from lightning_hier.strategies.checkpoints.resuming import SavedRun
from lightning_hier.strategies.checkpoints.saving import save_run, write_everywhere
from lightning_hier.strategies.fit_session import FitSession

_PLAIN = (
    "it holds no state of this package (it was saved after a stage other than fit, by another "
    "strategy, or by an older version), so training goes on from its model and optimizers with a "
    "new block; the order of the data and the random numbers begin anew."
)


class RunCheckpoints:
    """Saves, removes and resumes checkpoints.

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
            checkpoint: of Lightning.
            path: of the checkpoint.
            write: writes the checkpoint itself.

        Raises:
            OSError: on every rank, if any rank could not write.

        """
        if session is None or not session.begun or "optimizer_states" not in checkpoint:
            write_everywhere(lambda: write(checkpoint), self._strategy.root_device)
            return
        io = self._strategy.checkpoint_io
        session.training.synchroniser.local.keep_written_buffers()
        # Callbacks have put the tensors into the checkpoint that hold the average meanwhile.
        with session.training.averaged_weights.shown():
            saved = save_run(
                checkpoint,
                path,
                shared=shared_state(session),
                states=states(session),
                layout=session.worker_layout,
                removes=self._removes,
                io=io,
                write=write,
                device=session.communicators.device,
            )
        saves = session.saved_under[str(path)]
        saves.append(saved)
        # An asynchronous writer may not have replaced the checkpoint yet that names the older save.
        kept = 2 if isinstance(io, AsyncCheckpointIO) else 1
        old = [saves.pop(0) for _ in saves[kept:]]
        if self._removes:
            _remove(old)
            if len(saves) == kept:
                saves[0].remove_abandoned()

    @property
    def _removes(self) -> bool:
        """Whether this rank removes files: one of each host, as it may have a disk of its own."""
        return self._strategy.local_rank == 0

    def remove(self, session: FitSession | None, path: str | Path) -> None:
        """Remove the state of all ranks beside a checkpoint that has been removed."""
        saves = session.saved_under.pop(str(path), None) if session else None
        if not self._removes:
            return
        if saves is None:
            remove_folder(f"{path}.ranks")  # of an earlier job
        else:
            _remove(saves)

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
            session.saved_under[self._path].append(files)
        resume(saved, checkpoint, session)
        return True


def _remove(saves: Sequence[RankFiles]) -> None:
    for save in saves:
        save.remove()
