"""Overhead of a step between two synchronisations: Lightning's, and that of this package.

    python -m benchmarks.step_overhead

Short fits of Lightning's strategy for one device and of ours alternate in one process. The model
has 60 small parameter tensors, so that nearly all of a step is overhead. With torchrun, every rank
is a group. Times are processor time, which hardly depends on other ranks and programs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from examples.quiet import quiet_trainer, silence_lightning

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


class Clock(pl.Callback):
    """Record the processor time of every step, or count the calls of Python functions."""

    def __init__(self, *, counts: bool) -> None:
        self.begun: list[float] = []
        self.calls = 0
        self._counts = counts

    def on_train_batch_start(self, *_: Any) -> None:
        self.begun.append(time.process_time())
        if self._counts and len(self.begun) == _SKIPPED:
            sys.setprofile(self._count)

    def on_train_end(self, *_: Any) -> None:
        sys.setprofile(None)

    def _count(self, frame: object, event: str, arg: object) -> None:
        self.calls += event == "call"


def calls_added() -> float:
    """Return the calls of Python functions that ours adds to a step, relative to Lightning's."""
    theirs, ours = (_fit(ours=ours, counts=True) for ours in (False, True))
    return (ours - theirs) / theirs


def _fit(*, ours: bool, counts: bool = False) -> float:
    """Return the function calls of a step, or the 10th percentile of its time in microseconds."""
    clock, steps = Clock(counts=counts), _SKIPPED + _STEPS
    strategy: pl.strategies.Strategy = SingleDeviceStrategy("cpu")
    if ours:
        strategy = lh.HierarchicalStrategy(
            group_size=1,
            block_sync=lh.BMUF(block_size=2 * steps),
            warmup_steps=0,
            process_group_backend="gloo",
        )
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if ours else 1
    trainer = quiet_trainer(strategy, devices=devices, max_epochs=1, callbacks=[clock])
    trainer.fit(Small(), DataLoader(TensorDataset(torch.randn(steps, 8)), batch_size=1))
    if counts:
        return clock.calls / _STEPS
    seconds = [after - before for before, after in pairwise(clock.begun)]
    # The median varies more, because other programs use the caches.
    return 1e6 * statistics.quantiles(seconds[_SKIPPED:], n=10)[0]


def main() -> None:
    """Print the overhead of Lightning and the one that ours adds: median and quartiles."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=25, help="pairs of fits")
    turns = parser.parse_args().turns
    silence_lightning()
    torch.set_num_threads(1)
    calls = [_fit(ours=ours, counts=True) for ours in (False, True)]
    pairs = [(_fit(ours=False), _fit(ours=True)) for _ in range(turns)]
    theirs, added = [a for a, _ in pairs], [b - a for a, b in pairs]
    for name, times, number in (
        ("Lightning", theirs, calls[0]),
        ("ours adds", added, calls[1] - calls[0]),
    ):
        low, middle, high = statistics.quantiles(times, n=4)
        print(f"{name}: {middle:.0f} µs ({low:.0f} to {high:.0f}), {number:.0f} function calls")


if __name__ == "__main__":
    main()
