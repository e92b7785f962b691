"""What the module holds after a callback has given it another model."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback


class KeepsModule(Protocol):
    """Gives up its model for another one."""

    def keep_module(self) -> None:
        """Keep the weights that are in the module; only buffers still change."""


class EpochWithoutSteps(Callback):
    """Leaves alone what ``StochasticWeightAveraging`` puts into the module at its end.

    Its average is followed by one more epoch without steps, only for the statistics of BatchNorm;
    then the local model must not come back.
    """

    def __init__(self, model: KeepsModule) -> None:
        """Drive ``model``; this callback must come before the one that swaps the model back."""
        self._model = model

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the model that is in the module."""
        if trainer.fit_loop._skip_backward:
            self._model.keep_module()
