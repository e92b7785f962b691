"""A module of some ranks that breaks at a batch, and what is warned of then."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.trainer.fitting import Net, fit

NAN, INF = float("nan"), float("inf")


class Breaks(Net):
    """At a batch of some ranks, sets an element of a tensor, or multiplies the loss."""

    def __init__(self, batch: int, ranks: tuple[int, ...], where: str, value: float = NAN) -> None:
        super().__init__(batchnorm=True)
        self.excluded = 0.0
        self.batch, self.ranks, self.where, self.value = batch, ranks, where, value

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self._now(batch_idx) and self.where != "loss":
            with torch.no_grad():
                self.state_dict()[self.where].view(-1)[0] = self.value

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * self.value if self._now(batch_idx) and self.where == "loss" else loss

    def on_train_end(self) -> None:
        metrics = self.trainer.strategy.metrics()
        self.excluded = metrics.get("hier/block/excluded", 0.0)

    def _now(self, batch_idx: int) -> bool:
        return batch_idx == self.batch and int(os.environ["RANK"]) in self.ranks


Make = Callable[[], Any]
"""Makes a strategy, which serves one Trainer."""


def caught_in(
    make: Make, *broken: Any, batches: int = 6, **settings: Any
) -> tuple[list[str], Breaks]:
    """Trains; the warnings of this rank that speak of NaN, and the model."""
    model = Breaks(*broken)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(make(), batches, model, **settings)
    said = [str(warning.message) for warning in caught if "NaN" in str(warning.message)]
    return said, model
