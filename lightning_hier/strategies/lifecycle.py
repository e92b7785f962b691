"""Callbacks that decide which model is in the module: the global one in evaluation."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_hier.comm.profiling import profiler_range


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
