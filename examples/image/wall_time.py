"""How good the model was after how many seconds."""

from __future__ import annotations

import time
from typing import NamedTuple

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn


class Point(NamedTuple):
    """One validation.

    Attributes:
        seconds: of wall time since training began.
        accuracy: of the valid split, from 0 to 1.
    """

    seconds: float
    accuracy: float


class AccuracyOverTime(Callback):
    """Notes the accuracy of each validation of a fit, and when it was known.

    Args:
        monitor: name under which the model logs it.

    Attributes:
        points: in order of time.
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
        """Note it, but for the check before training and for validation without a fit."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        accuracy = float(trainer.callback_metrics[self.monitor])
        self.points.append(Point(time.monotonic() - self._begun_s, accuracy))
