"""A small module, its data, and a Trainer on the ranks of `tests.ranks`."""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier  # noqa: F401 - registers the names


class Net(pl.LightningModule):
    """Two layers; `seen` holds the weights after every step, as callbacks see them."""

    def __init__(self, *, batchnorm: bool = False, lr: float = 0.05) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8) if batchnorm else nn.Tanh(), nn.Linear(8, 2)
        )
        self.seen: list[Tensor] = []

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.layers(batch)
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def loss(self, batch: list[Tensor]) -> Tensor:
        return (self(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    test_step = validation_step

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(weights(self))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def weights(module: nn.Module) -> Tensor:
    """A flat copy of all parameters."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


def loader(batches_per_rank: int, *, rows: int = 2, ranks: int | None = None) -> DataLoader[Any]:
    """So many batches for each rank, after Lightning's sampler has divided them."""
    generator = torch.Generator().manual_seed(5)
    count = batches_per_rank * rows * (ranks or int(os.environ["WORLD_SIZE"]))
    inputs, targets = (torch.randn(count, width, generator=generator) for width in (4, 2))
    return DataLoader(TensorDataset(inputs, targets), batch_size=rows)


def make_trainer(strategy: Any, **settings: Any) -> pl.Trainer:
    """On the CPU, on the hosts and ranks that the environment tells, silent unless told else."""
    return pl.Trainer(
        **{
            "accelerator": "cpu",
            "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
            "num_nodes": int(os.environ["GROUP_WORLD_SIZE"]),
            "strategy": strategy,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **settings,
        }
    )


def fit(strategy: Any, batches: int = 6, model: Any = None, **settings: Any) -> pl.Trainer:
    """Train a `Net` for an epoch of so many batches."""
    trainer = make_trainer(strategy, **settings)
    trainer.fit(model or Net(), loader(batches))
    return trainer
