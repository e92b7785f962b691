"""What the module holds after a callback has given it another model."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_hier.comm.blocks.synchroniser import Synchroniser


class EpochWithoutSteps(Callback):
    """Leaves alone what ``StochasticWeightAveraging`` puts into the module at its end.

    Its average is followed by one more epoch without steps, only for the statistics of BatchNorm;
    then the local model must not come back.
    """

    def __init__(self, synchroniser: Synchroniser) -> None:
        """Drive ``synchroniser``; this callback must come before the one that hides the model."""
        self._synchroniser = synchroniser

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Settle for the model that is in the module."""
        if trainer.fit_loop._skip_backward:
            self._synchroniser.settle()
