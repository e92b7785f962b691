"""The acoustic model with a learning-rate schedule that is independent of the loss."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from torch.optim.lr_scheduler import LambdaLR

from examples.acoustic.model import LSTMAcousticModel


class FixedScheduleLSTM(LSTMAcousticModel):
    """SGD with momentum and a constant learning rate, which is halved in each of the last epochs.

    It is for comparisons at equal epochs. With min-rate newbob, the number of epochs depends on the
    loss.

    Args:
        schedule_epochs: number of all epochs, and number of the last epochs that halve the learning
            rate.
        options: arguments of the model.

    """

    def __init__(self, *, schedule_epochs: tuple[int, int] = (10, 5), **options: Any) -> None:
        super().__init__(**options)
        self.schedule_epochs = schedule_epochs

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedule."""
        epochs, decay_epochs = self.schedule_epochs
        constant = epochs - decay_epochs
        optimizer = self.sgd()
        scheduler = LambdaLR(optimizer, lambda epoch: 0.5 ** max(0, epoch + 1 - constant))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def configure_callbacks(self) -> list[pl.Callback]:
        """Return no callbacks, because training does not stop early."""
        return []
