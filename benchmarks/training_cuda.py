"""Time of a training step on a CUDA device, without emulation.

    python -m benchmarks.training_cuda                          the papers' LSTM, 24.3M parameters
    python -m benchmarks.training_cuda --work gpt2 --ranks 1    the language example's model

One rank uses NCCL. Several ranks share one GPU and use gloo on the loopback, each as a host. The
systems are::

    alone       the same ranks without communication
    between     model averaging with blocks longer than the run: no synchronisation
    the others  blocks of 50 steps, measured over whole blocks

All systems run alternately in one process of each rank.
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
from examples.quiet import silence_lightning
from examples.tables import markdown

_BLOCK, _WARM_UP = 50, 50
_LIMIT_S = 1800.0


def _systems(backend: str, work: Work) -> dict[str, Callable[[], Strategy]]:
    common: dict[str, Any] = {"process_group_backend": backend, "warmup_steps": 0}
    block = {"block_size": _BLOCK, **common}
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

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._marks: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step in (_WARM_UP, _WARM_UP + self.steps):
            torch.cuda.synchronize()
            self._marks.append(time.perf_counter())

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        begun, ended = self._marks
        return (ended - begun) / self.steps


def _run(name: str, strategy: Strategy, work: Work, steps: int) -> float:
    """Train, and return the seconds of a step."""
    window = _Window(steps)
    alone: dict[str, Any] = {"num_nodes": 1, "plugins": [LightningEnvironment()]}
    trainer = pl.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, strategy=strategy, callbacks=[window],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, **work.trainer,
        **(alone if name == "alone" else {"num_nodes": int(os.environ["WORLD_SIZE"])}),
    )  # fmt: skip
    batches: Any = [work.batch] * (_WARM_UP + steps + 1)
    trainer.fit(work.module(), DataLoader(batches, batch_size=None))
    return window.step_s


def rank(work: Work, steps: int, repetitions: int) -> dict[str, list[float]]:
    """Run all systems in turn, and return the seconds of a step of each."""
    silence_lightning()
    backend = "nccl" if os.environ["WORLD_SIZE"] == "1" else "gloo"
    systems = _systems(backend, work)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    with joined(backend):
        _run("alone", systems["alone"](), work, steps)  # initialise the GPU
        for _ in range(repetitions):
            for name, strategy in systems.items():
                seconds[name].append(_run(name, strategy(), work, steps))
    return seconds


def table(by_system: dict[str, list[float]], work: Work) -> str:
    """Return the table as Markdown."""
    alone = statistics.median(by_system["alone"])
    rows = [
        (
            name,
            f"{1e3 * statistics.median(seconds):.2f}",
            f"{1e3 * min(seconds):.2f} to {1e3 * max(seconds):.2f}",
            f"{statistics.median(seconds) / alone:.3f}",
            *_of_language(statistics.median(seconds), work),
        )
        for name, seconds in by_system.items()
    ]
    header = ["system", "ms a step", "spread", "of alone"]
    return markdown([*header, *(["tokens/s", "MFU"] if work.tokens else [])], rows)


def _of_language(step_s: float, work: Work) -> tuple[str, ...]:
    if not work.tokens:
        return ()
    mfu = work.mfu(step_s)
    return f"{work.tokens / step_s:,.0f}", "unknown" if mfu is None else f"{mfu:.1%}"


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
    parser.add_argument("--steps", type=int, default=100, help="a multiple of 50")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--as-rank", type=Path, help="run as a rank; the first one writes this file"
    )
    options = parser.parse_args()
    work = WORKS[options.work]()
    if options.as_rank:
        seconds = rank(work, options.steps, options.repetitions)
        if os.environ["RANK"] == "0":
            options.as_rank.write_text(json.dumps(seconds))
        return
    print(
        f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, Lightning {lightning.__version__}"
    )
    for number in options.ranks:
        name = "one rank, NCCL" if number == 1 else f"{number} ranks on one GPU, gloo"
        seconds = _run_ranks(number, sys.argv[1:])
        print(f"\n## {options.work}, {name}\n\n{table(seconds, work)}", flush=True)


if __name__ == "__main__":
    main()
