"""Time of a training step on a CUDA device, without emulation.

    python -m benchmarks.training_cuda                          the papers' LSTM, 24.3M parameters
    python -m benchmarks.training_cuda --work gpt2 --ranks 1    the language example's model
    torchrun -m benchmarks.training_cuda --as-rank FILE         as one rank; FILE gets the results
                                                                after every repetition

One rank uses NCCL. Several ranks share one GPU and use gloo on the loopback, each as a host. The
systems are::

    alone       the same ranks without communication
    between     model averaging with blocks longer than the run: no synchronisation
    the others  measured over whole blocks

All systems run alternately in one process of each rank. A ratio is the median of those within a
repetition. Two blocks of warm-up come first, because an overlapped exchange is in the second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch.utils.data import DataLoader

import lightning_hier as lh
from benchmarks.cuda_works import WORKS, Work
from benchmarks.hosts import loopback_hosts
from benchmarks.joined import joined
from benchmarks.launch import run_module
from examples.quiet import quiet_trainer, silence_lightning
from examples.tables import markdown, spread

_LIMIT_S = 1800.0


def _systems(backend: str, work: Work, block_size: int) -> dict[str, Callable[[], Strategy]]:
    common: dict[str, Any] = {"process_group_backend": backend, "warmup_steps": 0}
    block = {"block_size": block_size, **common}
    systems: dict[str, Callable[[], Strategy]] = {
        "alone": lambda: SingleDeviceStrategy(device="cuda:0"),
        "between": lambda: lh.ModelAveragingStrategy(block_size=10**6, **common),
        "ddp": lambda: DDPStrategy(process_group_backend=backend),
        "gtc": lambda: lh.GTCStrategy(density=0.01, **common),
        "diloco": lambda: lh.DiLoCoStrategy(**block),
        "diloco, int8, overlap": lambda: lh.DiLoCoStrategy(
            across_dtype="int8", overlap=True, **block
        ),
    }
    if work.with_moments:
        return {**systems, "bmuf_adam": lambda: lh.BMUFAdamStrategy(**block)}
    return {
        **systems,
        "bmuf": lambda: lh.BMUFStrategy(**block),
        "bmuf, int8": lambda: lh.BMUFStrategy(across_dtype="int8", **block),
        "bmuf_gtc": lambda: lh.BMUFGTCStrategy(density=0.01, **block),
    }


class _Window(pl.Callback):
    """Measure the steps from the warm-up to the end, both with an empty queue of the GPU."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self._warm_up = warm_up
        self.steps = steps
        self._marks: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step in (self._warm_up, self._warm_up + self.steps):
            torch.cuda.synchronize()
            self._marks.append(time.perf_counter())

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        begun, ended = self._marks
        return (ended - begun) / self.steps


def _run(name: str, strategy: Strategy, work: Work, warm_up: int, steps: int) -> float:
    """Train, and return the seconds of a step."""
    window = _Window(warm_up, steps)
    alone: dict[str, Any] = {"num_nodes": 1, "plugins": [LightningEnvironment()]}
    trainer = quiet_trainer(
        strategy, accelerator="gpu", devices=1, max_epochs=1, callbacks=[window], **work.trainer,
        **(alone if name == "alone" else {"num_nodes": int(os.environ["WORLD_SIZE"])}),
    )  # fmt: skip
    batches: Any = [work.batch] * (warm_up + steps + 1)
    with trainer.init_module():  # on the GPU
        module = work.module()
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return window.step_s


def rank(work: Work, options: argparse.Namespace) -> None:
    """Run all systems in turn. The first rank writes the seconds of a step of each."""
    silence_lightning()
    backend = "nccl" if os.environ["WORLD_SIZE"] == "1" else "gloo"
    systems = _systems(backend, work, options.block_size)
    seconds: dict[str, list[float]] = {name: [] for name in options.systems or systems}
    warm_up = 2 * options.block_size
    with joined(backend):
        _run("alone", systems["alone"](), work, 1, 1)  # initialise the GPU
        for _ in range(options.repetitions):
            for name, of_system in seconds.items():
                of_system.append(_run(name, systems[name](), work, warm_up, options.steps))
            if os.environ["RANK"] == "0":
                options.as_rank.write_text(json.dumps(seconds))


def table(by_system: dict[str, list[float]], work: Work, peak: float | None) -> str:
    """Return the table as Markdown."""
    rows = []
    for name, seconds in by_system.items():
        ratios = [one / alone for one, alone in zip(seconds, by_system["alone"], strict=False)]
        step_s = statistics.median(seconds)
        row = [
            name,
            spread([1e3 * one for one in seconds]),
            spread(ratios, 3),
        ]
        if work.tokens:
            row.append(f"{work.tokens / step_s:,.0f}")
            row += [f"{work.mfu(step_s, peak):.1%}"] if peak else []
        rows.append(tuple(row))
    header = ["system", "ms a step", "of alone", "tokens/s", "MFU"]
    return markdown(header[: len(rows[0])], rows)


def _run_ranks(number: int, arguments: Sequence[str]) -> dict[str, list[float]]:
    """Run this module on all ranks, and return the result of the first one."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        run_module(
            loopback_hosts(number), 1, "benchmarks.training_cuda", *arguments,
            "--as-rank", str(out), folder=Path(folder), limit_s=_LIMIT_S,
        )  # fmt: skip
        seconds: dict[str, list[float]] = json.loads(out.read_text())
    return seconds


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", choices=WORKS, default="lstm")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--systems", nargs="+", help="some of them; alone comes first")
    parser.add_argument("--block-size", type=int, default=50)
    parser.add_argument("--steps", type=int, default=100, help="a multiple of the block size")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--peak-tflops", type=float, help="of the GPU in bfloat16, for the MFU")
    parser.add_argument(
        "--as-rank", type=Path, help="run as a rank; the first one writes this file"
    )
    options = parser.parse_args()
    work = WORKS[options.work]()
    if options.systems:
        known = _systems("gloo", work, options.block_size)
        if unknown := set(options.systems) - set(known):
            parser.error(f"unknown systems {sorted(unknown)}: choose from {', '.join(known)}")
        options.systems = ["alone", *(name for name in options.systems if name != "alone")]
    if options.as_rank:
        rank(work, options)
        return
    peak = 1e12 * options.peak_tflops if options.peak_tflops else None
    print(
        f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, Lightning {lightning.__version__}"
    )
    for number in options.ranks:
        name = "one rank, NCCL" if number == 1 else f"{number} ranks on one GPU, gloo"
        seconds = _run_ranks(number, sys.argv[1:])
        print(f"\n## {options.work}, {name}\n\n{table(seconds, work, peak)}", flush=True)


if __name__ == "__main__":
    main()
