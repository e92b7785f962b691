"""Training task: a small network learns the outputs of a random one."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

_INPUTS, _UNITS = 32, 16
_TRAIN_ROWS, _VALID_ROWS, _NOISE = 1 << 16, 2048, 0.1


class Student(pl.LightningModule):
    """Regression with AdamW and a BatchNorm layer, whose statistics are averaged, too."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(_INPUTS, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute outputs (B, 1) for inputs (B, 32)."""
        outputs: Tensor = self.network(inputs)
        return outputs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-4)


def rows() -> tuple[TensorDataset, TensorDataset]:
    """Return training and validation data, which do not depend on the seed."""
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(_INPUTS, _UNITS, generator=generator) / _INPUTS**0.5
    second = torch.randn(_UNITS, 1, generator=generator) / _UNITS**0.5
    datasets = []
    for count in (_TRAIN_ROWS, _VALID_ROWS):
        inputs = torch.randn(count, _INPUTS, generator=generator)
        noise = _NOISE * torch.randn(count, 1, generator=generator)
        datasets.append(TensorDataset(inputs, (2 * inputs @ first).relu() @ second + noise))
    return datasets[0], datasets[1]


class ValidLoss:
    """Mean squared error of a module on the validation data.

    Args:
        data: validation data.

    """

    def __init__(self, data: TensorDataset) -> None:
        self._inputs, self._targets = data.tensors

    @torch.no_grad()
    def __call__(self, module: pl.LightningModule) -> float:
        """Compute the error. The module does not change."""
        module.eval()
        loss = nn.functional.mse_loss(module(self._inputs), self._targets)
        module.train()
        return float(loss)
