"""Logs what a strategy counts to whatever loggers the Trainer has."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback


class HasMetrics(Protocol):
    """Anything that counts."""

    def metrics(self) -> dict[str, float]:
        """Values by name; no communication."""


class HierarchyMetrics(Callback):
    """Writes the values of rank 0 every ``log_every_n_steps`` and at the end of training."""

    def __init__(self, source: HasMetrics) -> None:
        """Log what ``source`` counts."""
        self._source = source

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log if Lightning logs at this batch."""
        if trainer._logger_connector.should_update_logs:
            self._log(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the totals of the run."""
        self._log(trainer)

    def _log(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
            metrics = self._source.metrics()  # once: reading the density starts it anew
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)
                logger.save()
