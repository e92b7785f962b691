"""What a rank does in the speed benchmark of two-stage ASGD: train in every way, and take the time.

All ways take turns within a repetition, in the same processes. See `benchmarks.two_stage_speed`.
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
from benchmarks.quiet_trainer import quiet_trainer
from examples.quiet import silence_lightning
from lightning_hier import TwoStageASGDStrategy

FEATURES, SENONES = 660, 1500
"""Inputs of the paper's DNN (11 frames of 60 features), and fewer outputs than its 6245."""

NEVER = 10**6
"""A push period after which no push falls into a run."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train for some steps.

    Attributes:
        system: ``"alone"``: rank 0 by itself while the other one sleeps; ``"apart"``: both ranks,
            each by itself; ``"ddp"``; ``"two_stage"``.
        device: ``"core"`` computes a mini-batch on a core of the host. ``"waiting"`` computes a few
            frames and then sleeps, as a rank does whose accelerator computes.
        push_period: N of two-stage ASGD.
        double_buffering: likewise.

    """

    system: Literal["alone", "apart", "ddp", "two_stage"]
    device: Literal["core", "waiting"]
    push_period: int = 1
    double_buffering: bool = True


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all ranks are told.

    Attributes:
        ways: taken in turns.
        repetitions: of all of them.
        width: units of each of the 5 hidden layers.
        frames: of a mini-batch.
        computed_frames: of them, those that a waiting device computes itself.
        pause_s: how long a waiting device sleeps in a mini-batch.
        out: file to which rank 0 adds a line for each way and repetition.

    """

    ways: list[Way]
    repetitions: int
    width: int
    frames: int
    computed_frames: int
    pause_s: float
    out: str


class DNN(pl.LightningModule):
    """The paper's kind of model: 5 hidden layers, softmax over senones, plain SGD."""

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


class Stopwatch(pl.Callback):
    """Time, processor time and counters between the ends of two steps of this rank.

    Args:
        first: steps before the watch starts.
        last: steps when it stops.

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
            own = {"seconds": time.perf_counter(), "cpu_seconds": time.process_time()}
            own["steps"] = float(trainer.global_step)
            kept = {name.removeprefix("hier/two_stage/"): n for name, n in counted.items()}
            self._readings.append(own | {k: v for k, v in kept.items() if not k.startswith("hier")})

    def difference(self) -> dict[str, float]:
        """Of everything, between the two marks."""
        before, after = self._readings
        return {name: value - before.get(name, 0.0) for name, value in after.items()}


def window(way: Way) -> tuple[int, int]:
    """Steps between which a way is timed: whole push periods, after at least one of them."""
    if way.system != "two_stage" or way.push_period == NEVER:
        return 4, 20
    periods = max(3, 16 // way.push_period)
    first = max(4, way.push_period)
    return first, first + periods * way.push_period


def strategy_of(way: Way) -> Strategy:
    """What to pass to the Trainer."""
    if way.system == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    if way.system == "two_stage":
        return TwoStageASGDStrategy(
            push_period=way.push_period, double_buffering=way.double_buffering
        )
    return SingleDeviceStrategy(device="cpu")


def train(model: DNN, frames: int, steps: int, **settings: Any) -> None:
    """Train on one batch of so many random frames, again and again, silently."""
    batch = [torch.randn(frames, FEATURES), torch.randint(SENONES, (frames,))]
    loader: Any = DataLoader([batch] * steps, batch_size=None)  # type: ignore[arg-type]
    trainer = quiet_trainer(
        **settings,
    )
    trainer.fit(model, loader)


def fit(way: Way, job: Job) -> dict[str, float]:
    """Train for some steps and give what the watch has seen. By every rank that takes part."""
    first, last = window(way)
    watch = Stopwatch(first, last)
    single = way.system in ("alone", "apart")
    waiting = way.device == "waiting"
    train(
        DNN(job.width, job.pause_s if waiting else 0.0),
        job.computed_frames if waiting else job.frames,
        last + 1,  # so that the end of the epoch is not in the window
        devices=1,
        num_nodes=1 if single else dist.get_world_size(),
        plugins=[LightningEnvironment()] if single else None,
        strategy=strategy_of(way),
        callbacks=[watch],
    )
    return watch.difference()


def link_seconds(nbytes: int) -> float:
    """For one transfer of so many bytes over the link, by gloo, without encryption. Both ranks."""
    rank, payload = dist.get_rank(), torch.zeros(nbytes, dtype=torch.uint8)
    dist.barrier()
    begun = time.perf_counter()
    for sender in (0, 1):
        (dist.send if rank == sender else dist.recv)(payload, 1 - rank)
    return (time.perf_counter() - begun) / 2


def main() -> None:
    """Do what the first argument says."""
    silence_lightning()
    torch.set_num_threads(1)
    told = json.loads(sys.argv[1])
    job = Job(**{**told, "ways": [Way(**way) for way in told["ways"]]})
    with joined():
        _train_in_turn(job)


def _train_in_turn(job: Job) -> None:
    rank = dist.get_rank()
    model_bytes = 4 * sum(parameter.numel() for parameter in DNN(job.width).parameters())
    for repetition in range(job.repetitions):
        turn = repetition * len(job.ways) // job.repetitions
        for way in [*job.ways[turn:], *job.ways[:turn]]:
            found = {"link": link_seconds(model_bytes)}
            if rank == 0 or way.system != "alone":
                found |= fit(way, job)
            rows = gathered(found)
            if rank == 0:
                line = {"repetition": repetition, "way": asdict(way), "ranks": rows}
                with Path(job.out).open("a") as file:
                    file.write(json.dumps(line | {"model_bytes": model_bytes}) + "\n")


if __name__ == "__main__":
    main()
