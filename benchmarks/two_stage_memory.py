"""Memory of every rank under two-stage ASGD and DDP, as a multiple of the model's.

There are four ranks on one host in two groups of two. Rank 0 is master, node and device, rank 1 a
device, rank 2 node and device, rank 3 a device. Each system runs in new processes, because a
process may keep memory that it has freed. The memory before the model is created is subtracted.

    python -m benchmarks.two_stage_memory
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, Strategy

from benchmarks.joined import gathered
from benchmarks.two_stage_ranks import DNN, train
from examples.quiet import silence_lightning
from examples.ranks import run_module
from examples.tables import markdown
from lightning_hier import TwoStageASGDStrategy

_RANKS, _STEPS, _FRAMES = 4, 24, 16
_SYSTEMS = {
    "ddp": "DDP",
    "on": "two-stage ASGD, double buffering",
    "off": "two-stage ASGD, no double buffering",
}
_ROLES = ("rank 0: master, node, device", "1: device", "2: node, device", "3: device")


class SharedMemory(pl.Callback):
    """Measure the bytes of shared memory that this rank has used at the end of training."""

    used = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == _STEPS - 1:
            self.used = status("RssShmem")


def status(name: str) -> int:
    """Return a value of ``/proc/self/status`` in bytes, such as ``VmHWM``, the peak memory."""
    line = next(x for x in Path("/proc/self/status").open() if x.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def strategy_of(system: str) -> Strategy:
    """Return the strategy of the Trainer."""
    if system == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    return TwoStageASGDStrategy(group_size=2, push_period=4, double_buffering=system == "on")


def measure(system: str, width: int, out: Path) -> None:
    """Train, and let rank 0 write the results of all ranks. All ranks must call it."""
    # A small model first, so that libraries, sockets and threads do not count.
    _train(DNN(8), system, SharedMemory())
    before = status("VmRSS")
    shared, model = SharedMemory(), DNN(width)
    _train(model, system, shared)
    model_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    reading = {"peak": status("VmHWM") - before, "shared": shared.used, "model": model_bytes}
    rows = gathered(reading)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows))
    if system == "ddp":
        # Lightning's DDP does not destroy it, and threads of gloo may then abort the process.
        dist.destroy_process_group()


def _train(model: DNN, system: str, shared: SharedMemory) -> None:
    settings = {"devices": _RANKS, "strategy": strategy_of(system), "callbacks": [shared]}
    train(model, _FRAMES, _STEPS, **settings)


def table(by_system: dict[str, list[list[dict[str, int]]]]) -> str:
    """Return a table of the memory of each rank in models, median and range over the runs.

    The shared memory of a node is in the resident set of every rank that uses it. It is subtracted
    there, and has a column of its own.
    """
    rows = []
    for system, runs in by_system.items():
        memory = [[(rank["peak"] - rank["shared"]) / rank["model"] for rank in run] for run in runs]
        cells = [_range([run[rank] for run in memory]) for rank in range(_RANKS)]
        node = [run[0]["shared"] / run[0]["model"] for run in runs]
        rows.append((_SYSTEMS[system], *cells, _range(node)))
    return markdown(("system", *_ROLES, "shared by a node"), rows)


def _range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    """Run all systems several times, and print the table. With JSON as argument, run as a rank."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        silence_lightning()
        torch.set_num_threads(1)
        settings = json.loads(sys.argv[1])
        measure(settings["system"], settings["width"], Path(settings["out"]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=3, help="runs of every system")
    parser.add_argument("--width", type=int, default=1280, help="width of the hidden layers")
    options = parser.parse_args()
    results: dict[str, list[list[dict[str, int]]]] = {system: [] for system in _SYSTEMS}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        for _ in range(options.repetitions):
            for system, runs in results.items():
                settings = {"system": system, "width": options.width, "out": str(out)}
                run_module("benchmarks.two_stage_memory", json.dumps(settings), ranks=_RANKS)
                runs.append(json.loads(out.read_text()))
    size = results["ddp"][0][0]["model"] / 1e6
    print(f"Model of {size:.1f} MB; median (range) of {options.repetitions} runs, in models.\n")
    print(table(results))


if __name__ == "__main__":
    main()
