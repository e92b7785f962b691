"""Cost of a checkpoint by number of ranks: size of its files, memory and time of a save.

    python -m benchmarks.checkpoint_cost --ranks 1 2 4

A model of 24.3 million parameters is trained for a few steps, and saved in the middle of a block.
Sizes are multiples of that of the model. The time of a save is relative to that of ``torch.save``
of the module in the same process just before, so that the speed of the disk does not matter.
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
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from benchmarks.two_stage_memory import status
from examples.quiet import quiet_trainer, silence_lightning
from examples.ranks import run_module
from examples.tables import markdown

_ROUNDS = 2
_SYSTEMS: dict[str, Callable[[], pl.strategies.Strategy]] = {
    "bmuf": lambda: lh.BMUFStrategy(block_size=8, process_group_backend="gloo", warmup_steps=0),
    "bmuf_gtc": lambda: lh.BMUFGTCStrategy(
        group_size="world", block_size=8, process_group_backend="gloo", warmup_steps=0, density=0.01
    ),
    "bmuf_adam": lambda: lh.BMUFAdamStrategy(
        block_size=8, process_group_backend="gloo", warmup_steps=0, local_beta1="keep"
    ),
}


class Wide(pl.LightningModule):
    """24.3 million parameters in four square matrices."""

    def __init__(self, system: str, width: int = 2464) -> None:
        super().__init__()
        self.system = system
        self.net = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.system == "bmuf_adam":
            return torch.optim.Adam(self.parameters(), lr=1e-4)
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)


class MeasureSave(pl.Callback):
    """Save in the middle of a block, and measure time and memory.

    Args:
        folder: folder of the checkpoints.

    Attributes:
        measured: relative time, and memory in bytes.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.measured: dict[str, Any] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step != 4:
            return
        ratios, peaks = [], []
        for number in range(_ROUNDS):
            plain = _seconds(lambda: torch.save(module.state_dict(), self._plain_file(trainer)))
            Path("/proc/self/clear_refs").write_text("5")  # reset the peak
            before = status("VmRSS")
            path = self.folder / f"{number}.ckpt"
            whole = _seconds(lambda path=path: trainer.save_checkpoint(path))  # type: ignore[misc]
            peaks.append(status("VmHWM") - before)
            ratios.append(whole / plain)
        self.measured = {"ratio": statistics.median(ratios), "memory": max(peaks)}

    def _plain_file(self, trainer: pl.Trainer) -> Path:
        return self.folder / f"plain_{trainer.global_rank}.pt"


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def measure(system: str, ranks: int, folder: Path) -> None:
    """Train and save. Rank 0 writes the results. All ranks must call it."""
    silence_lightning()
    saves = MeasureSave(folder)
    model = Wide(system)
    trainer = quiet_trainer(
        strategy=_SYSTEMS[system](),
        devices=ranks,
        max_steps=5,
        callbacks=[saves],
    )
    data = TensorDataset(torch.randn(8 * ranks, 2464))
    trainer.fit(model, DataLoader(data, batch_size=1))
    if trainer.is_global_zero:
        unit = 4 * sum(parameter.numel() for parameter in model.parameters())
        rank_files = list((folder / "0.ckpt.ranks").rglob("*.pt"))
        costs = {
            "system": system,
            "ranks": ranks,
            "file": (folder / "0.ckpt").stat().st_size / unit,
            "rank": max(path.stat().st_size for path in rank_files) / unit,
            "memory": saves.measured["memory"] / unit,
            "ratio": saves.measured["ratio"],
        }
        (folder / "costs.json").write_text(json.dumps(costs))


def main() -> None:
    """Measure all systems with all numbers of ranks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--systems", nargs="+", default=list(_SYSTEMS), choices=list(_SYSTEMS))
    options = parser.parse_args()
    rows = []
    for system in options.systems:
        for ranks in options.ranks:
            with tempfile.TemporaryDirectory() as folder:
                run_module(
                    "benchmarks.checkpoint_cost", json.dumps([system, ranks, folder]), ranks=ranks
                )
                costs = json.loads((Path(folder) / "costs.json").read_text())
            numbers = [f"{costs[key]:.2f}" for key in ("file", "rank", "memory", "ratio")]
            rows.append([system, str(ranks), *numbers])
    header = ("system", "ranks", "file", "largest of a rank", "memory of rank 0", "time")
    print(markdown(header, rows))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        name, number, where = json.loads(sys.argv[1])
        measure(name, number, Path(where))
    else:
        main()
