"""What a step between two synchronisations costs the processor: Lightning's part, and ours.

    python -m benchmarks.step_overhead

Each rank takes turns in short fits of a strategy of Lightning and of ours, with 60 small parameter
tensors, so that the step is nearly all overhead. Times are processor time of the whole process, so
waiting for other ranks and programs hardly counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from benchmarks.quiet_trainer import quiet_trainer
from examples.quiet import silence_lightning
from examples.tables import markdown
from examples.torchrun import run_module

_SKIPPED = 50
_STEPS = 250
_NEVER = 10**6  # steps until a synchronisation

Make = Callable[[], pl.strategies.Strategy]


def _alone() -> pl.strategies.Strategy:
    return SingleDeviceStrategy("cpu")


def _ddp() -> pl.strategies.Strategy:
    return DDPStrategy(process_group_backend="gloo")


def _bmuf(group_size: int) -> Make:
    return lambda: lh.HierarchicalStrategy(
        group_size=group_size,
        block_sync=lh.BMUF(block_size=_NEVER) if group_size == 1 else None,
        warmup_steps=0,
        process_group_backend="gloo",
    )


# Ranks, Lightning's strategy and ours.
_CASES: dict[str, tuple[int, Make, Make]] = {
    "1 rank": (1, _alone, _bmuf(1)),
    "2 groups of 1 rank": (2, _alone, _bmuf(1)),
    "1 group of 2 ranks": (2, _ddp, _bmuf(2)),
}


class Small(pl.LightningModule):
    """30 layers of 8 x 8 weights, as deep in other modules as those of a Transformer."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Sequential(nn.Linear(8, 8))) for _ in range(30))
        self.net = nn.Sequential(*layers)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)


class Clock(pl.Callback):
    """Notes the processor time at the start of every step."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.at.append(time.process_time())


def _step_us(make: Make, devices: int) -> float:
    """Processor microseconds of a step: nine tenths of the steps of a fit take longer."""
    clock = Clock()
    devices = 1 if make is _alone else devices
    trainer = quiet_trainer(strategy=make(), devices=devices, callbacks=[clock])
    data = TensorDataset(torch.randn(_SKIPPED + _STEPS, 8))
    trainer.fit(Small(), DataLoader(data, batch_size=1))
    steps = [b - a for a, b in zip(clock.at, clock.at[1:], strict=False)]
    # Other programs use the caches, so the median varies more.
    return 1e6 * statistics.quantiles(steps[_SKIPPED:], n=10)[0]


def measure(case: str, turns: int, result: Path) -> None:
    """On every rank; rank 0 writes pairs of microseconds."""
    silence_lightning()
    torch.set_num_threads(1)
    ranks, theirs, ours = _CASES[case]
    found = []
    _step_us(ours, ranks)  # imports, and the first use of everything
    for turn in range(turns):
        order = (theirs, ours) if turn % 2 else (ours, theirs)
        times = {make: _step_us(make, ranks) for make in order}
        found.append((times[theirs], times[ours]))
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        result.write_text(json.dumps(found))


def main() -> None:
    """Measure the cases, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--cases", nargs="+", default=list(_CASES), choices=list(_CASES))
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "found.json"
            told = json.dumps([case, options.turns, str(result)])
            run_module("benchmarks.step_overhead", told, ranks=_CASES[case][0])
            found = json.loads(result.read_text())
        theirs, added = [a for a, _ in found], [b - a for a, b in found]
        rows.append([case, _spread(theirs), _spread(added)])
    print(markdown(("case", "Lightning's step, µs", "ours adds, µs"), rows))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        name, number, where = json.loads(sys.argv[1])
        measure(name, number, Path(where))
    else:
        main()
