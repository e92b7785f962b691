"""What a step of the papers' LSTM costs on a CUDA card, all of it really computed.

    python -m benchmarks.training_cuda

trains 24.3 million parameters on a card over NCCL, and with two ranks that share the card, each a
host of its own, over gloo on loopback. In one process after the other::

    alone       the same ranks without communication
    between     ours, blocks longer than the run: a step between two synchronisations
    the others  blocks of 50 steps, the run over whole blocks

All runs of a rank are in one process, the runs of one kind spread over it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import lightning_hier as lh
from benchmarks.hosts import loopback_hosts
from benchmarks.joined import joined
from benchmarks.launch import run_module
from examples.quiet import silence_lightning
from examples.tables import markdown

_BLOCK, _WARM_UP, _WINDOW = 50, 50, 100
_FRAMES, _SEQUENCES, _FEATURES, _SENONES = 20, 64, 192, 3183
_LIMIT_S = 1800.0


def _systems(backend: str) -> dict[str, Callable[[], Strategy]]:
    own: dict[str, Any] = {"process_group_backend": backend, "warmup_steps": 0}
    block = {"block_size": _BLOCK, **own}
    return {
        "alone": lambda: SingleDeviceStrategy(device="cuda:0"),
        "between": lambda: lh.BMUFStrategy(block_size=10**6, **own),
        "ddp": lambda: DDPStrategy(process_group_backend=backend),
        "gtc": lambda: lh.GTCStrategy(density=0.01, **own),
        "bmuf": lambda: lh.BMUFStrategy(**block),
        "bmuf overlap": lambda: lh.BMUFStrategy(overlap=True, **block),
        "bmuf int8": lambda: lh.BMUFStrategy(across_dtype="int8", **block),
        "bmuf_gtc": lambda: lh.BMUFGTCStrategy(density=0.01, **block),
    }


class _LSTM(pl.LightningModule):
    """On random frames that lie on the card."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(_FEATURES, 768, 5)
        self.senones = nn.Linear(768, _SENONES)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        frames = torch.randn(_FRAMES, _SEQUENCES, _FEATURES, device=self.device)
        labels = torch.randint(_SENONES, (_FRAMES * _SEQUENCES,), device=self.device)
        hidden, _ = self.lstm(frames)
        return cross_entropy(self.senones(hidden).flatten(0, 1), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)


class _Window(pl.Callback):
    """Seconds of the steps between warm-up and end, with the card's queue empty at both."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step in (_WARM_UP, _WARM_UP + _WINDOW):
            torch.cuda.synchronize()
            self._marks.append(time.perf_counter())

    @property
    def step_s(self) -> float:
        """Of a step."""
        begun, ended = self._marks
        return (ended - begun) / _WINDOW


def _run(name: str, strategy: Strategy) -> float:
    """Seconds of a step."""
    window = _Window()
    alone: dict[str, Any] = {"num_nodes": 1, "plugins": [LightningEnvironment()]}
    trainer = pl.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, strategy=strategy, callbacks=[window],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
        **(alone if name == "alone" else {"num_nodes": int(os.environ["WORLD_SIZE"])}),
    )  # fmt: skip
    empty: Any = [torch.zeros(1)] * (_WARM_UP + _WINDOW + 1)
    trainer.fit(_LSTM(), DataLoader(empty, batch_size=None))
    return window.step_s


def rank(repetitions: int) -> dict[str, list[float]]:
    """All systems by turns; seconds of a step of each."""
    silence_lightning()
    backend = "nccl" if os.environ["WORLD_SIZE"] == "1" else "gloo"
    systems = _systems(backend)
    found: dict[str, list[float]] = {name: [] for name in systems}
    with joined(backend):
        _run("alone", systems["alone"]())  # what is made at the first use of the card
        for _ in range(repetitions):
            for name, strategy in systems.items():
                found[name].append(_run(name, strategy()))
    return found


def table(found: dict[str, list[float]]) -> str:
    """As Markdown."""
    alone = statistics.median(found["alone"])
    rows = [
        (
            name,
            f"{1e3 * statistics.median(seconds):.2f}",
            f"{1e3 * min(seconds):.2f} to {1e3 * max(seconds):.2f}",
            f"{statistics.median(seconds) / alone:.3f}",
        )
        for name, seconds in found.items()
    ]
    return markdown(("system", "ms a step", "spread", "of alone"), rows)


def _ranks(number: int, repetitions: int) -> dict[str, list[float]]:
    """Start the ranks, a host each; what the first has found."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        arguments = ("--repetitions", str(repetitions), "--as-rank", str(out))
        run_module(
            loopback_hosts(number), 1, "benchmarks.training_cuda", *arguments,
            folder=Path(folder), limit_s=_LIMIT_S,
        )  # fmt: skip
        found: dict[str, list[float]] = json.loads(out.read_text())
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--as-rank", type=Path, help="be a rank; the first writes this file")
    options = parser.parse_args()
    if options.as_rank:
        found = rank(options.repetitions)
        if os.environ["RANK"] == "0":
            options.as_rank.write_text(json.dumps(found))
        return
    print(
        f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, Lightning {lightning.__version__}"
    )
    for number, name in ((1, "one rank, NCCL"), (2, "two ranks on one card, gloo")):
        print(f"\n## {name}\n\n{table(_ranks(number, options.repetitions))}")


if __name__ == "__main__":
    main()
