"""Training of one rank in the speed benchmark of two-stage ASGD, with all configurations.

All configurations run alternately in the same processes. See `benchmarks.two_stage_speed`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from benchmarks.joined import gathered, joined
from examples.quiet import quiet_trainer, silence_lightning
from lightning_hier import TwoStageASGDStrategy

FEATURES, SENONES = 660, 1500
"""Inputs of the paper's DNN (11 frames of 60 features), and fewer outputs than its 6245."""

NEVER = 10**6
"""A push period that is longer than a run, so that there are no pushes."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One training configuration.

    Attributes:
        system: ``"ddp"``, ``"two_stage"``, ``"alone"`` if only rank 0 trains, or ``"apart"`` if
            both ranks train independently.
        device: ``"core"`` computes a mini-batch on a core of the host. ``"waiting"`` computes a few
            frames and then sleeps, like a rank that waits for its accelerator.
        push_period: push period N of two-stage ASGD.
        double_buffering: whether two-stage ASGD uses double buffering.

    """

    system: Literal["alone", "apart", "ddp", "two_stage"]
    device: Literal["core", "waiting"]
    push_period: int = 1
    double_buffering: bool = True


@dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of the benchmark.

    Attributes:
        configurations: configurations to measure.
        repetitions: number of repetitions of all configurations.
        width: number of units of each of the 5 hidden layers.
        frames: number of frames of a mini-batch.
        computed_frames: number of frames of a mini-batch that a waiting device computes.
        pause_s: seconds that a waiting device sleeps in a mini-batch.
        out: file to which rank 0 appends a line for each configuration and repetition.

    """

    configurations: list[Configuration]
    repetitions: int
    width: int
    frames: int
    computed_frames: int
    pause_s: float
    out: str


class DNN(pl.LightningModule):
    """A model like the paper's: 5 hidden layers, softmax over senones, SGD."""

    def __init__(self, width: int, pause_s: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = [FEATURES, *[width] * 5]
        layers = [(nn.Linear(*pair), nn.ReLU()) for pair in zip(sizes, sizes[1:], strict=False)]
        self.layers = nn.Sequential(*sum(layers, ()), nn.Linear(width, SENONES))
        self.pause_s = pause_s

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        time.sleep(self.pause_s)
        return cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class WindowRecorder(pl.Callback):
    """Measure time, processor time and counters between the ends of two steps of this rank.

    Args:
        first: number of steps at the start of the window.
        last: number of steps at the end of the window.

    """

    def __init__(self, first: int, last: int) -> None:
        self._marks = (first, last)
        self._readings: list[dict[str, float]] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        if trainer.global_step in self._marks:
            strategy = trainer.strategy
            counted = strategy.metrics() if isinstance(strategy, TwoStageASGDStrategy) else {}
            times = {"seconds": time.perf_counter(), "cpu_seconds": time.process_time()}
            steps = {"steps": float(trainer.global_step)}
            prefix = "hier/two_stage/"
            counters = {
                name.removeprefix(prefix): value
                for name, value in counted.items()
                if name.startswith(prefix)
            }
            self._readings.append(times | steps | counters)

    def difference(self) -> dict[str, float]:
        """Return the differences of all values over the window."""
        before, after = self._readings
        return {name: value - before.get(name, 0.0) for name, value in after.items()}


def window(config: Configuration) -> tuple[int, int]:
    """Return the first and last step of the window: whole push periods, after the first one."""
    if config.system != "two_stage" or config.push_period == NEVER:
        return 4, 20
    periods = max(3, 16 // config.push_period)
    first = max(4, config.push_period)
    return first, first + periods * config.push_period


def strategy_of(config: Configuration) -> Strategy:
    """Return the strategy of the Trainer."""
    if config.system == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    if config.system == "two_stage":
        return TwoStageASGDStrategy(
            push_period=config.push_period, double_buffering=config.double_buffering
        )
    return SingleDeviceStrategy(device="cpu")


def train(model: DNN, frames: int, steps: int, **settings: Any) -> None:
    """Train for ``steps`` steps on the same batch of random frames."""
    batch = [torch.randn(frames, FEATURES), torch.randint(SENONES, (frames,))]
    loader: Any = DataLoader([batch] * steps, batch_size=None)  # type: ignore[arg-type]
    quiet_trainer(max_epochs=1, **settings).fit(model, loader)


def fit(config: Configuration, job: Job) -> dict[str, float]:
    """Train, and return the readings of the window. All ranks that train must call it."""
    first, last = window(config)
    recorder = WindowRecorder(first, last)
    single = config.system in ("alone", "apart")
    waiting = config.device == "waiting"
    train(
        DNN(job.width, job.pause_s if waiting else 0.0),
        job.computed_frames if waiting else job.frames,
        last + 1,  # the end of the epoch is not in the window
        devices=1,
        num_nodes=1 if single else dist.get_world_size(),
        plugins=[LightningEnvironment()] if single else None,
        strategy=strategy_of(config),
        callbacks=[recorder],
    )
    return recorder.difference()


def link_seconds(nbytes: int) -> float:
    """Return the time of a transfer over the link by gloo. Both ranks must call it."""
    rank, payload = dist.get_rank(), torch.zeros(nbytes, dtype=torch.uint8)
    dist.barrier()
    begun = time.perf_counter()
    for sender in (0, 1):
        (dist.send if rank == sender else dist.recv)(payload, 1 - rank)
    return (time.perf_counter() - begun) / 2


def main() -> None:
    """Run the job of the first argument."""
    silence_lightning()
    torch.set_num_threads(1)
    settings = json.loads(sys.argv[1])
    job = Job(
        **{
            **settings,
            "configurations": [Configuration(**config) for config in settings["configurations"]],
        }
    )
    with joined():
        _train_in_turn(job)


def _train_in_turn(job: Job) -> None:
    rank = dist.get_rank()
    model_bytes = 4 * sum(parameter.numel() for parameter in DNN(job.width).parameters())
    for repetition in range(job.repetitions):
        first = repetition * len(job.configurations) // job.repetitions
        for config in [*job.configurations[first:], *job.configurations[:first]]:
            reading = {"link": link_seconds(model_bytes)}
            if rank == 0 or config.system != "alone":
                reading |= fit(config, job)
            rows = gathered(reading)
            if rank == 0:
                line = {"repetition": repetition, "way": asdict(config), "ranks": rows}
                with Path(job.out).open("a") as file:
                    file.write(json.dumps(line | {"model_bytes": model_bytes}) + "\n")


if __name__ == "__main__":
    main()
