"""What the module holds after a callback has given it another model."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback


class Settles(Protocol):
    """The part of a synchroniser that gives up its model for another one."""

    def settle(self) -> None:
        """Leave the module as somebody else has put it; only BatchNorm's buffers still move."""


class EpochWithoutSteps(Callback):
    """Leaves alone what ``StochasticWeightAveraging`` puts into the module at its end.

    Its average is followed by one more epoch without steps, only for the statistics of BatchNorm;
    then the local model must not come back.
    """

    def __init__(self, model: Settles) -> None:
        """Drive ``model``; this callback must come before the one that hides the model."""
        self._model = model

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Settle for the model that is in the module."""
        if trainer.fit_loop._skip_backward:
            self._model.settle()
