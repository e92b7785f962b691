"""What the module holds between two epochs, and after a callback has given it another model."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_hier.comm.blocks.synchroniser import Synchroniser
from lightning_hier.comm.worker import Worker


class BetweenEpochs(Callback):
    """Keeps the global model in the module until an epoch's first batch, as
    ``StochasticWeightAveraging`` expects it.

    That callback averages the models at the begin of epochs. At the end it puts the average into
    the module and runs one more epoch without steps, only for the statistics of BatchNorm; then
    the local model must not come back.
    """

    def __init__(self, synchroniser: Synchroniser, worker: Worker) -> None:
        """Drive ``synchroniser``; this callback must come before the one that hides the model."""
        self._synchroniser = synchroniser
        self._worker = worker

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the global model where it is not shown yet: in a run that is resumed here."""
        if self._worker.begun:
            self._synchroniser.show()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Leave the module alone in an epoch without steps."""
        if trainer.fit_loop._skip_backward:
            self._synchroniser.settle()
