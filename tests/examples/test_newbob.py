"""Tests of the newbob schedule: rates for given losses, and its use in a Trainer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from examples.acoustic.newbob import NewbobLR, StopAtMinimumRate
from examples.quiet import quiet_trainer

# 10 -> 9 falls by 10%, 9 -> 8.5 by 5.6%, 8.5 -> 8.4 by 1.2%. The ramp starts at the fourth loss. It
# continues although the fifth loss falls by more than 5%.
LOSSES = [10.0, 9.0, 8.5, 8.4, 4.0, 3.9]


class ScriptedLoss(LightningModule):
    """Logs a given loss in each epoch, so that the rates in a Trainer are known."""

    def __init__(self, monitor: str) -> None:
        super().__init__()
        self.monitor = monitor
        self.layer = nn.Linear(1, 1)
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        if batch_idx == 0:
            self.rates.append(rate)
        self._log_scripted("train/loss")
        output: Tensor = self.layer(batch[0])
        return output.square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._log_scripted("valid/loss")

    def _log_scripted(self, name: str) -> None:
        self.log(name, torch.tensor(LOSSES[self.current_epoch]), on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.8)
        scheduler = NewbobLR(optimizer, min_lr=0.1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": scheduler,
                "monitor": self.monitor,
                "reduce_on_plateau": True,
            },
        }

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.ones(2, 1)))

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.ones(1, 1)))


def test_trainer_halves_and_stops_at_the_minimum() -> None:
    model = ScriptedLoss("valid/loss")
    trainer = quiet_trainer(max_epochs=20, callbacks=[StopAtMinimumRate()])
    trainer.fit(model)
    # The rate of an epoch follows from the losses before it.
    assert model.rates == [0.8, 0.8, 0.8, 0.8, 0.4, 0.2]
    assert trainer.current_epoch == len(LOSSES)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1)
