"""Callbacks that precede those of the user: end of data, and the model that is in the module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_hier.comm.blocks.joining import Joining
from lightning_hier.comm.profiling import profiler_range

if TYPE_CHECKING:
    from lightning_hier.comm.blocks.evaluation import Evaluation
    from lightning_hier.strategies.fit_session import FitSession
    from lightning_hier.strategies.server_session import ServerSession


class EndOfData(Callback):
    """Notes the end of this rank's batches for errors, or has it join the others until theirs.

    The first of all callbacks: what follows at an epoch's end, validation, checkpoints and other
    callbacks, finds all ranks in the same place.

    Args:
        session: of this rank.
        join: whether ranks that have run out of batches join the others.

    """

    def __init__(self, session: FitSession, *, join: bool) -> None:
        synchroniser = session.synchroniser
        self._health = health = synchroniser.health
        self._termination = session.termination
        self._joining = (
            Joining(session.communicators, session.worker, health, synchroniser.end_block)
            if join
            else None
        )
        self._met = False

    def on_train_batch_start(self, *_: Any) -> None:
        """There is a batch."""
        self._met = False

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Meet the others after the last one."""
        if trainer.is_last_batch or _batches(trainer) == trainer.num_training_batches:
            self._meet(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Meet them if the epoch has ended otherwise, without a batch or by the user's hook."""
        if not self._met:
            self._meet(trainer)

    def _meet(self, trainer: pl.Trainer) -> None:
        self._met = True
        self._health.batches = _batches(trainer)
        if self._joining is None:
            return
        while not self._joining.run():
            self._act_on_signal()
            if trainer.received_sigterm:
                # The others leave in the middle of their epoch, where Lightning checks for it.
                raise SIGTERMException
        if self._health.signalled:
            self._act_on_signal()

    def _act_on_signal(self) -> None:
        """Act at once; other ranks act at the end of their batch. A collective of the world."""
        self._termination.agree()
        self._termination.on_train_batch_end()


def _batches(trainer: pl.Trainer) -> int:
    """Batches of this epoch so far."""
    return int(trainer.fit_loop.epoch_loop.batch_idx) + 1


class GlobalModelLifecycle(Callback):
    """Precedes the callbacks of the user, so that they see the global model.

    It is written when validation starts and when an epoch ends, and stays until the next batch: at
    an epoch's end validation, checkpoints and callbacks follow each other, and one exchange serves
    them all.

    Args:
        model: swaps the global model into the module, and the local model back.

    """

    def __init__(self, model: Evaluation | ServerSession) -> None:
        self._model = model

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Train on with the local model.

        At its end ``StochasticWeightAveraging`` writes its average into the module, and has an
        epoch without steps compute the statistics of BatchNorm. The average stays.
        """
        if trainer.fit_loop._skip_backward:
            self._model.keep_module()
        self._model.swap_back()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate the global model."""
        if not trainer.sanity_checking:
            self._swap_in()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate the global model at an epoch's end."""
        self._swap_in()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the global model in the module."""
        with profiler_range("hier/global_model/swap_in"):
            self._model.end_training()

    def _swap_in(self) -> None:
        with profiler_range("hier/global_model/swap_in"):
            self._model.swap_in_global_model()
