"""Callbacks that precede those of the user: end of data, own error, and the global model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError, ProgressRecord, named_ranks
from lightning_hier.strategies.loop_position import is_after_step
from lightning_hier.strategies.trainer_changes import TrainerChanges

if TYPE_CHECKING:
    from lightning_hier.comm.blocks.evaluation import Evaluation
    from lightning_hier.comm.blocks.health_exchange import HealthExchange
    from lightning_hier.strategies.server_session import ServerSession


class EndOfData(Callback):
    """Records that this rank has no batch left, which an error of ranks out of step then says.

    It precedes all callbacks that may synchronise ranks.

    Args:
        health: exchange of health reports.

    """

    def __init__(self, health: HealthExchange) -> None:
        self._health = health

    def on_train_batch_start(self, *_: Any) -> None:
        """Record that there is a batch."""
        self._health.batches = -1

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Record the last batch."""
        # The conditions by which Lightning ends an epoch (`_num_ready_batches_reached`).
        if trainer.is_last_batch or _batches(trainer) == trainer.num_training_batches:
            self._health.batches = _batches(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Record the end of an epoch that has no batches, or that a hook has ended early."""
        self._health.batches = _batches(trainer)


class OwnError(Callback):
    """Keeps the error with which training on this rank ends in front of its consequences.

    The other ranks name it. A callback may save a checkpoint on an exception: a collective, for
    which this rank would wait alone and then raise another error, unless all ranks have failed.

    Args:
        changes: changes to the Trainer.
        progress: record of all ranks.

    """

    def __init__(self, changes: TrainerChanges, progress: ProgressRecord) -> None:
        self._progress, self._trainer = progress, changes.trainer
        changes.replace("save_checkpoint", self._save)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Record the error, before the callbacks of the user see it."""
        self._progress.note_error(exception)

    def _save(self, save: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        error = self._progress.own_error
        if error is not None:
            reason = ""
            if isinstance(error, PeerError):
                reason = "another rank is lost or has failed"
            elif running := self._progress.without_error():
                reason = f"{named_ranks(running)} had none: a save needs all ranks"
            elif not is_after_step(self._trainer):
                reason = "it was raised within a step"
            if reason:
                warnings.warn(
                    f"no checkpoint is saved after this error, because {reason}. Resume from the "
                    "last regular checkpoint.",
                    stacklevel=2,
                )
                return
        save(*args, **kwargs)


def _batches(trainer: pl.Trainer) -> int:
    """Number of batches of this epoch so far. 0 if it has none."""
    return int(trainer.fit_loop.epoch_loop.batch_idx) + 1


class GlobalModelLifecycle(Callback):
    """Swaps in the global model before the callbacks of the user run.

    The model is swapped in when validation starts and when an epoch ends, and swapped back before
    the next batch. At the end of an epoch, one exchange therefore serves validation, checkpoints
    and callbacks.

    Args:
        model: puts the global model into the module, and restores the local model.

    """

    def __init__(self, model: Evaluation | ServerSession) -> None:
        self._model = model

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Swap the local model back."""
        self._model.swap_back()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Swap in the global model for validation."""
        # Before training, all ranks have one model.
        if not trainer.sanity_checking:
            self._swap_in()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Swap in the global model at the end of an epoch."""
        self._swap_in()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the global model in the module."""
        # Always, because training may end within an epoch, before a synchronisation.
        with profiler_range("hier/global_model/swap_in"):
            self._model.end_training()

    def _swap_in(self) -> None:
        with profiler_range("hier/global_model/swap_in"):
            self._model.swap_in_global_model()
