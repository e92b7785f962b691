"""What a rank does in one run: the steps without communication, the system's, and those again.

Run by torchrun on every host. A rank writes what it has found into the folder that it is told.
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
from benchmarks.performance.rank import Watch
from benchmarks.quiet_trainer import quiet_trainer


class Live(pl.Callback):
    """Bytes of all tensors after the last step, in the middle of a block."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.bytes = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self._steps:
            self.bytes = memory.tensor_bytes()


def train(network: Network, setup: Setup, size: Size, warm_up: int, window: int) -> dict[str, Any]:
    """Train, and return what was seen in the window, and memory. Every rank takes part."""
    before = memory.tensor_bytes()
    module = Transformer(size, setup.mesh)
    # One more than the window, so that the end of the epoch is not in it.
    steps = warm_up + window + 1
    watch, live = Watch(warm_up, warm_up + window), Live(steps)
    data: Any = [torch.zeros(1)] * steps
    dist.barrier()
    memory.forget_peak()
    trainer = quiet_trainer(
        strategy=setup.strategy,
        devices=network.ranks_per_host,
        num_nodes=network.hosts,
        callbacks=[watch, live, *setup.callbacks],
    )
    trainer.fit(module, DataLoader(data, batch_size=None))
    return {
        "steps_s": watch.steps_s(),
        "sent_bytes": watch.sent_bytes(),
        "peak_bytes": memory.peak_bytes(),
        "live_models": (live.bytes - before) / module.model_bytes,
    }


def run(told: dict[str, Any]) -> dict[str, Any]:
    """One run of one system between two of the hosts for themselves."""
    network, size = Network(**told["network"]), Size(**told["size"])
    system, block_size = named(told["system"]), told["block_size"]
    steps = system.steps(block_size)
    goodput = measure_goodput(told["goodput_bytes"], 0, network.ranks_per_host)
    before = train(network, alone(network), size, 2, steps.control)
    own = train(
        network, system.set_up(network, told["block_size"]), size, steps.warm_up, steps.window
    )
    after = train(network, alone(network), size, 2, steps.control)
    return {
        "rank": dist.get_rank(),
        "host": dist.get_rank() // network.ranks_per_host,
        "goodput": goodput,
        "control_s": [*before["steps_s"], *after["steps_s"]],
        "steps_s": own["steps_s"],
        "sent_bytes": own["sent_bytes"],
        "extra_peak_bytes": own["peak_bytes"] - before["peak_bytes"],
        "metrics": {},
        "live_models": own["live_models"],
        "control_live_models": before["live_models"],
    }


def main() -> None:
    """Do what the first argument says."""
    told = json.loads(sys.argv[1])
    report(told["folder"], lambda: run(told))


if __name__ == "__main__":
    main()
