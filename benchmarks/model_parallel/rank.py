"""One run on one rank: control steps without communication, steps of the system, control steps.

torchrun starts this module on every host. Each rank writes its readings into the output folder.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from benchmarks.model_parallel.module import Size, Transformer
from benchmarks.model_parallel.systems import Setup, alone, named
from benchmarks.performance import memory
from benchmarks.performance.job import Network
from benchmarks.performance.link import measure_goodput
from benchmarks.performance.on_rank import report
from benchmarks.performance.rank import StepRecorder
from examples.quiet import quiet_trainer


class Live(pl.Callback):
    """Measure the bytes of all tensors after the last step, in the middle of a block."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.bytes = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self._steps:
            self.bytes = memory.tensor_bytes()


def train(network: Network, setup: Setup, size: Size, warm_up: int, window: int) -> dict[str, Any]:
    """Train, and return times and bytes of the window, and memory. All ranks must call it."""
    before = memory.tensor_bytes()
    module = Transformer(size, setup.mesh)
    # One more step, so that the end of the epoch is not in the window.
    steps = warm_up + window + 1
    recorder, live = StepRecorder(warm_up, warm_up + window), Live(steps)
    data: Any = [torch.zeros(1)] * steps
    dist.barrier()
    memory.reset_peak()
    trainer = quiet_trainer(
        setup.strategy,
        max_epochs=1,
        devices=network.ranks_per_host,
        num_nodes=network.hosts,
        callbacks=[recorder, live, *setup.callbacks],
    )
    trainer.fit(module, DataLoader(data, batch_size=None))
    return {
        "steps_s": recorder.steps_s(),
        "sent_bytes": recorder.sent_bytes(),
        "peak_bytes": memory.peak_bytes(),
        "live_models": (live.bytes - before) / module.model_bytes,
    }


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Run one system, with steps of independent hosts before and after it."""
    network, size = Network(**settings["network"]), Size(**settings["size"])
    system, block_size = named(settings["system"]), settings["block_size"]
    steps = system.steps(block_size)
    goodput = measure_goodput(settings["goodput_bytes"], 0, network.ranks_per_host)
    before = train(network, alone(network), size, 2, steps.control)
    measured = train(network, system.set_up(network, block_size), size, steps.warm_up, steps.window)
    after = train(network, alone(network), size, 2, steps.control)
    return {
        "rank": dist.get_rank(),
        "host": dist.get_rank() // network.ranks_per_host,
        "goodput": goodput,
        "control_s": [*before["steps_s"], *after["steps_s"]],
        "steps_s": measured["steps_s"],
        "sent_bytes": measured["sent_bytes"],
        "extra_peak_bytes": measured["peak_bytes"] - before["peak_bytes"],
        "metrics": {},
        "live_models": measured["live_models"],
        "control_live_models": before["live_models"],
    }


def main() -> None:
    """Run with the settings of the first argument."""
    settings = json.loads(sys.argv[1])
    report(settings["folder"], lambda: run(settings))


if __name__ == "__main__":
    main()
