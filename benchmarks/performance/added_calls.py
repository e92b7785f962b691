"""Calls of Python functions that a step between two synchronisations adds to Lightning's.

A rank is a group. The model has 60 small parameter tensors, so that nearly all of a step is
overhead.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from examples.quiet import quiet_trainer

_SKIPPED = 50
_STEPS = 250


class Small(pl.LightningModule):
    """30 layers of 8 x 8 weights, as deeply nested as in a Transformer."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Sequential(nn.Linear(8, 8))) for _ in range(30))
        self.net = nn.Sequential(*layers)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)


class _Calls(pl.Callback):
    """Count the calls of Python functions after some steps."""

    number = 0

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == _SKIPPED:
            sys.setprofile(self._count)

    def on_train_end(self, *_: Any) -> None:
        sys.setprofile(None)

    def _count(self, frame: object, event: str, arg: object) -> None:
        self.number += event == "call"


def calls_added() -> float:
    """Return the calls that our strategy adds to a step, relative to those of Lightning's."""
    never = lh.BMUF(block_size=2 * (_SKIPPED + _STEPS))
    theirs, ours = (
        _calls(strategy)
        for strategy in (
            SingleDeviceStrategy("cpu"),
            lh.HierarchicalStrategy(
                group_size=1, block_sync=never, warmup_steps=0, process_group_backend="gloo"
            ),
        )
    )
    return (ours - theirs) / theirs


def _calls(strategy: pl.strategies.Strategy) -> int:
    calls = _Calls()
    trainer = quiet_trainer(strategy, devices=1, max_epochs=1, callbacks=[calls])
    rows = TensorDataset(torch.randn(_SKIPPED + _STEPS, 8))
    trainer.fit(Small(), DataLoader(rows, batch_size=1))
    return calls.number
