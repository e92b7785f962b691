"""Swaps the global model into the module whenever Lightning evaluates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_hier.comm.profiling import profiler_range


class SwapsGlobalModel(Protocol):
    """Decides which model the module holds."""

    def swap_in_global_model(self) -> None:
        """Save the local model and write the global one into the module."""

    def swap_back(self) -> None:
        """Restore the local model."""

    def end_training(self) -> None:
        """Synchronise the last block and leave the global model in the module."""


class GlobalModelLifecycle(Callback):
    """First of all callbacks, so that the others see the global model.

    It is swapped in when validation starts and when an epoch ends, and stays until the next batch:
    at an epoch's end validation, checkpoints and callbacks share one exchange.
    """

    def __init__(self, model: SwapsGlobalModel) -> None:
        """Drive ``model``."""
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
        """Show callbacks and the module the global model at an epoch's end."""
        with profiler_range("hier/global_model/swap_in"):
            self._model.swap_in_global_model()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the global model in the module."""
        with profiler_range("hier/global_model/swap_in"):
            self._model.end_training()


def surround_callbacks(
    trainer: pl.Trainer, first: Sequence[Callback], last: Sequence[Callback]
) -> Callable[[], None]:
    """Put callbacks around a Trainer's own; what is returned takes them away again."""
    trainer.callbacks = [*first, *trainer.callbacks, *last]  # type: ignore[attr-defined]

    def restore() -> None:
        own = [callback for callback in trainer.callbacks if callback not in (*first, *last)]  # type: ignore[attr-defined]
        trainer.callbacks = own  # type: ignore[attr-defined]

    return restore
