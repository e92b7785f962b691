"""Acoustic models under a schedule that does not depend on the loss, for comparisons."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch.optim.lr_scheduler import LambdaLR

from examples.acoustic.models import (
    BLSTMAcousticModel,
    DNNAcousticModel,
    FrameClassifier,
    LSTMAcousticModel,
)


class FixedSchedule(FrameClassifier):
    """SGD with momentum; the rate is held, then halved in each of the last epochs.

    Min-rate newbob decides by the loss when to halve and when to stop; a comparison at equal epochs
    must not.

    Args:
        schedule_epochs: all, and how many of them, at the end, halve the rate.
        options: of the model.

    """

    def __init__(self, *, schedule_epochs: tuple[int, int] = (10, 5), **options: Any) -> None:
        super().__init__(**options)
        self.schedule_epochs = schedule_epochs

    def configure_optimizers(self) -> Any:
        """The optimizer and its schedule."""
        epochs, decay_epochs = self.schedule_epochs
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.learning_rate, momentum=self.momentum
        )
        held = epochs - decay_epochs
        scheduler = LambdaLR(optimizer, lambda epoch: 0.5 ** max(0, epoch + 1 - held))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def configure_callbacks(self) -> list[pl.Callback]:
        """None: nothing stops early."""
        return []


class FixedScheduleLSTM(FixedSchedule, LSTMAcousticModel):
    """The LSTM under a fixed schedule."""


class FixedScheduleBLSTM(FixedSchedule, BLSTMAcousticModel):
    """The bidirectional LSTM under a fixed schedule."""


class FixedScheduleDNN(FixedSchedule, DNNAcousticModel):
    """The DNN under a fixed schedule."""
