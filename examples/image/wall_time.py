"""A callback that records the validation accuracy over wall time."""

from __future__ import annotations

import time
from typing import NamedTuple

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn


class Point(NamedTuple):
    """Result of a validation.

    Attributes:
        seconds: wall time since the start of training.
        accuracy: accuracy on the valid split, from 0 to 1.
    """

    seconds: float
    accuracy: float


class AccuracyOverTime(Callback):
    """Records the time and the accuracy of each validation in ``fit``.

    Args:
        monitor: name of the logged accuracy.

    Attributes:
        points: results in the order of time.
    """

    def __init__(self, monitor: str = "valid/accuracy") -> None:
        self.monitor = monitor
        self.points: list[Point] = []
        self._begun_s = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self.points.clear()
        self._begun_s = time.monotonic()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the accuracy, except in the sanity check and in ``Trainer.validate``."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        accuracy = float(trainer.callback_metrics[self.monitor])
        self.points.append(Point(time.monotonic() - self._begun_s, accuracy))
