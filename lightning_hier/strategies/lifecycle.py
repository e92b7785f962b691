"""Shows the global model whenever Lightning looks at the model outside training steps."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback


class ShowsGlobalModel(Protocol):
    """The part of a synchroniser that decides which model the module holds."""

    def show(self) -> None:
        """Put the local model aside and write the global one."""

    def hide(self) -> None:
        """Put the local model back."""

    def finish(self) -> None:
        """End the last block and leave the global model."""


class GlobalModelLifecycle(Callback):
    """First of all callbacks, so that the others see the global model.

    It is shown when validation starts and when an epoch ends, and stays until the next batch: at
    an epoch's end validation, checkpoints and callbacks follow each other, and one exchange serves
    them all.
    """

    def __init__(self, model: ShowsGlobalModel) -> None:
        """Drive ``model``."""
        self._model = model

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Train on with the local model."""
        self._model.hide()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate the global model."""
        if not trainer.sanity_checking:
            self._model.show()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show callbacks and the module the global model at an epoch's end."""
        self._model.show()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the global model in the module."""
        self._model.finish()
