"""Callbacks that precede those of the user: end of data, and the model that is in the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.joining import Joining
from lightning_hier.comm.profiling import profiler_range


class EndOfData(Callback):
    """Notes it for errors, or has this rank join the others until all have come there.

    The first of all callbacks: what follows at an epoch's end, validation, checkpoints and other
    callbacks, finds all ranks in the same place.
    """

    def __init__(
        self, health: HealthExchange, joining: Joining | None, obey: Callable[[], None]
    ) -> None:
        """Tell ``health``; join by ``joining`` if there is one; ``obey`` acts on a signal."""
        self._health = health
        self._joining = joining
        self._obey = obey
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
            self._obey()
            if trainer.received_sigterm:
                # The others leave in the middle of their epoch, where Lightning checks for it.
                raise SIGTERMException
        if self._health.signalled:
            self._obey()


def _batches(trainer: pl.Trainer) -> int:
    """Batches of this epoch so far."""
    return int(trainer.fit_loop.epoch_loop.batch_idx) + 1


class SwapsGlobalModel(Protocol):
    """Writes the global model into the module, and the local model back."""

    def swap_in_global_model(self) -> None:
        """Save the local model and write the global one into the module."""

    def swap_back(self) -> None:
        """Restore the local model."""

    def end_training(self) -> None:
        """Synchronise the last block and leave the global model in the module."""


class GlobalModelLifecycle(Callback):
    """Precedes the callbacks of the user, so that they see the global model.

    It is written when validation starts and when an epoch ends, and stays until the next batch: at
    an epoch's end validation, checkpoints and callbacks follow each other, and one exchange serves
    them all.
    """

    def __init__(self, model: SwapsGlobalModel) -> None:
        """Act on ``model``."""
        self._model = model

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Train on with the local model."""
        self._model.swap_back()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate the global model."""
        if not trainer.sanity_checking:
            with profiler_range("hier/global_model/swap_in"):
                self._model.swap_in_global_model()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate the global model at an epoch's end."""
        with profiler_range("hier/global_model/swap_in"):
            self._model.swap_in_global_model()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the global model in the module."""
        with profiler_range("hier/global_model/swap_in"):
            self._model.end_training()


class KeepsModule(Protocol):
    """Gives up the local model for the one in the module."""

    def keep_module(self) -> None:
        """Keep the present model for good; only the buffers of BatchNorm still change."""


class EpochWithoutSteps(Callback):
    """Keeps the average that ``StochasticWeightAveraging`` writes into the module at its end.

    Its average is followed by one more epoch without steps, only for the statistics of BatchNorm;
    then the local model must not come back.
    """

    def __init__(self, model: KeepsModule) -> None:
        """Act on ``model``. This callback must precede :class:`GlobalModelLifecycle`."""
        self._model = model

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the model that is in the module."""
        if trainer.fit_loop._skip_backward:
            self._model.keep_module()
