"""Memory of every rank under two-stage ASGD and DDP, in units of the model.

Four ranks on one host, two groups of two: rank 0 is master, node and device, rank 1 a device, rank
2 node and device, rank 3 a device. Each system runs in processes of its own, because memory that a
process has had once it may keep. What a rank held before it made the model is taken off.

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
from examples.tables import markdown
from examples.torchrun import run_module
from lightning_hier import TwoStageASGDStrategy

_RANKS, _STEPS, _FRAMES = 4, 24, 16
_SYSTEMS = {
    "ddp": "DDP",
    "on": "two-stage ASGD, double buffering",
    "off": "two-stage ASGD, no double buffering",
}
_ROLES = ("rank 0: master, node, device", "1: device", "2: node, device", "3: device")


class SharedMemory(pl.Callback):
    """How many bytes of shared memory this rank has mapped and used, when training ends."""

    used = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == _STEPS - 1:
            self.used = status("RssShmem")


def status(name: str) -> int:
    """Bytes of a line of this process's status, such as ``VmHWM``, its peak resident set."""
    line = next(x for x in Path("/proc/self/status").open() if x.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def strategy_of(system: str) -> Strategy:
    """What to pass to the Trainer."""
    if system == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    return TwoStageASGDStrategy(group_size=2, push_period=4, double_buffering=system == "on")


def measure(system: str, width: int, out: Path) -> None:
    """Train for some steps; rank 0 writes what all ranks have measured. On every rank."""
    # Libraries, sockets and threads are there after a small model, and not counted.
    _train(DNN(8), system, SharedMemory())
    before = status("VmRSS")
    shared, model = SharedMemory(), DNN(width)
    _train(model, system, shared)
    model_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    found = {"peak": status("VmHWM") - before, "shared": shared.used, "model": model_bytes}
    rows = gathered(found)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows))
    if system == "ddp":
        # Lightning's DDP leaves it there, and gloo's threads may then end the process by an abort.
        dist.destroy_process_group()


def _train(model: DNN, system: str, shared: SharedMemory) -> None:
    settings = {"devices": _RANKS, "strategy": strategy_of(system), "callbacks": [shared]}
    train(model, _FRAMES, _STEPS, **settings)


def table(found: dict[str, list[list[dict[str, int]]]]) -> str:
    """Median and range over the runs of each system, in models, by rank.

    The shared memory of a node counts in the resident set of every rank that has used it, so it is
    taken off there and shown by itself.
    """
    rows = []
    for system, runs in found.items():
        own = [[(rank["peak"] - rank["shared"]) / rank["model"] for rank in run] for run in runs]
        cells = [_range([run[rank] for run in own]) for rank in range(_RANKS)]
        node = [run[0]["shared"] / run[0]["model"] for run in runs]
        rows.append((_SYSTEMS[system], *cells, _range(node)))
    return markdown(("system", *_ROLES, "shared by a node"), rows)


def _range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    """Run every system some times, in turns, and print; or be one of the ranks."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        silence_lightning()
        torch.set_num_threads(1)
        told = json.loads(sys.argv[1])
        measure(told["system"], told["width"], Path(told["out"]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=3, help="of every system")
    parser.add_argument("--width", type=int, default=1280, help="of the hidden layers")
    options = parser.parse_args()
    found: dict[str, list[list[dict[str, int]]]] = {system: [] for system in _SYSTEMS}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        for _ in range(options.repetitions):
            for system, runs in found.items():
                told = {"system": system, "width": options.width, "out": str(out)}
                run_module("benchmarks.two_stage_memory", json.dumps(told), ranks=_RANKS)
                runs.append(json.loads(out.read_text()))
    size = found["ddp"][0][0]["model"] / 1e6
    print(f"Model of {size:.1f} MB; median (range) of {options.repetitions} runs, in models.\n")
    print(table(found))


if __name__ == "__main__":
    main()
