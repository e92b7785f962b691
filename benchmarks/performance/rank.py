"""Training with the systems of a job one after the other, with control steps between them.

torchrun starts this module on every host. Each rank writes its readings into the folder of the job.
The control steps are those of the same ranks without communication.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from benchmarks.hosts import link_bytes
from benchmarks.performance import memory, plain_loop
from benchmarks.performance.job import Job, Steps, steps_for
from benchmarks.performance.link import measure_goodput
from benchmarks.performance.on_rank import report
from benchmarks.performance.systems import Setup, System, named, set_up, without_communication
from benchmarks.performance.work import WorkModule
from examples.quiet import quiet_trainer
from lightning_hier import HierarchicalStrategy


class StepRecorder(pl.Callback):
    """Record times and counters at the end of every step, and return those of a window.

    Args:
        first: number of steps before the window.
        last: number of steps at the end of the window.

    Attributes:
        ended_s: time at the end of each step.
        metrics: metrics of the strategy at the end of the window.

    """

    def __init__(self, first: int, last: int) -> None:
        self._marks = (first, last)
        self.ended_s: list[float] = []
        self._processor_s: list[float] = []
        self._sent: list[float] = []
        self.metrics: dict[str, float] = {}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        self.record()
        if len(self.ended_s) in self._marks and isinstance(trainer.strategy, HierarchicalStrategy):
            self.metrics = trainer.strategy.metrics()

    def record(self) -> None:
        """Record the end of a step."""
        self.ended_s.append(time.perf_counter())
        self._processor_s.append(time.process_time())
        self._sent.append(link_bytes(os.environ["GLOO_SOCKET_IFNAME"])[0])

    def steps_s(self) -> list[float]:
        """Return the time of each step of the window."""
        return self._differences(self.ended_s)

    def processor_s(self) -> list[float]:
        """Return the processor time of each step of the window, all threads of this rank."""
        return self._differences(self._processor_s)

    def sent_bytes(self) -> list[float]:
        """Return the bytes that the host sent over its link in each step of the window."""
        return self._differences(self._sent)

    def _differences(self, ends: list[float]) -> list[float]:
        first, last = self._marks
        return [end - begun for begun, end in pairwise(ends[first - 1 : last])]


def train(job: Job, setup: Setup, *, warm_up: int, window: int, adam: bool) -> StepRecorder:
    """Train, and return the recorder of the window. All ranks must call it."""
    recorder = StepRecorder(warm_up, warm_up + window)
    module = WorkModule(job.work, dist.get_rank(), adam=adam)
    # One more batch, so that the end of the epoch is not in the window.
    empty: Any = [torch.zeros(1)] * (warm_up + window + 1)
    dist.barrier()
    trainer = quiet_trainer(
        max_epochs=1,
        callbacks=[recorder, *setup.callbacks],
        **setup.trainer_settings(job.network.hosts, job.network.ranks_per_host),
    )
    trainer.fit(module, DataLoader(empty, batch_size=None))
    return recorder


@dataclass(frozen=True, kw_only=True)
class Control:
    """Steps of the same ranks without communication.

    Attributes:
        steps_s: seconds of each step.
        peak_bytes: peak of the resident memory.

    """

    steps_s: list[float]
    peak_bytes: int


def control(job: Job, steps: int, *, adam: bool) -> Control:
    """Train for ``steps`` steps without communication. All ranks must call it."""
    memory.reset_peak()
    recorder = train(job, without_communication(), warm_up=2, window=steps, adam=adam)
    return Control(steps_s=recorder.steps_s(), peak_bytes=memory.peak_bytes())


def run(job: Job) -> list[dict[str, Any]]:
    """Measure all systems of the job, one after the other. All ranks must call it."""
    readings = []
    before: dict[bool, Control] = {}  # of the latest system, by whether it has used Adam
    for name in job.systems:
        system, adam = named(name), named(name).adam
        steps = steps_for(system, job.work, job.network, blocks=job.blocks)
        before = {adam: before.get(adam) or control(job, steps.control, adam=adam)}
        memory.reset_peak()
        reading = measure(job, system, steps)
        peak = memory.peak_bytes()
        if len(job.systems) == 1:  # memory of earlier systems may still be resident
            reading["extra_peak_bytes"] = peak - before[adam].peak_bytes
        after = control(job, steps.control, adam=adam)
        reading["control_s"] = [*before[adam].steps_s, *after.steps_s]
        readings.append(reading)
        before = {adam: after}
        if dist.get_rank() == 0:
            print(f"measured {name}", flush=True)
    return readings


def measure(job: Job, system: System, steps: Steps) -> dict[str, Any]:
    """Train with one system, and return the readings of this rank. All ranks must call it."""
    # A single host has no link.
    goodput = None
    if job.network.hosts > 1:
        goodput = measure_goodput(job.goodput_bytes, 0, job.network.ranks_per_host)
    if system.plain:
        recorder = StepRecorder(steps.warm_up, steps.warm_up + steps.window)
        module = WorkModule(job.work, dist.get_rank(), adam=system.adam)
        plain_loop.train(module, system, steps.warm_up + steps.window, recorder.record)
    else:
        setup = set_up(system)
        recorder = train(job, setup, warm_up=steps.warm_up, window=steps.window, adam=system.adam)
    return {
        "rank": dist.get_rank(),
        "host": dist.get_rank() // job.network.ranks_per_host,
        "goodput": goodput,
        "steps_s": recorder.steps_s(),
        "sent_bytes": recorder.sent_bytes(),
        "metrics": recorder.metrics,
    }


def main() -> None:
    """Run the job of the first argument."""
    job = Job.decoded(sys.argv[1])
    report(job.folder, lambda: run(job))


if __name__ == "__main__":
    main()
