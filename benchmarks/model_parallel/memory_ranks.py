"""Memory of the tensors of a rank under each strategy, as a multiple of the model's.

torchrun starts this module on the loopback. The ranks form two groups.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from benchmarks.model_parallel.held import bytes_by_kind
from benchmarks.model_parallel.module import Size, Transformer
from benchmarks.performance.on_rank import report
from examples.quiet import quiet_trainer
from lightning_hier import BMUFAdamFSDPStrategy, DiLoCoFSDPStrategy

GROUPS = 2
SIZE = Size(width=64, layers=4, sequences=1, tokens=2)
"""Size of the model, whose tensors divide evenly among 4 ranks."""

_BLOCK, _STEPS = 4, 6
# With momentum, as in long runs. Automatic values make such a short run model averaging.
_BMUF_ADAM = partial(BMUFAdamFSDPStrategy, block_momentum=0.5)
_DILOCO = partial(DiLoCoFSDPStrategy, outer_momentum=0.9)
MEASURED: dict[str, partial[Any]] = {
    "`bmuf_adam_fsdp`": _BMUF_ADAM,
    "`bmuf_adam_fsdp`, offloaded": partial(_BMUF_ADAM, offload_outer_state=True),
    "`diloco_fsdp`": _DILOCO,
    "`diloco_fsdp`, int8": partial(_DILOCO, across_dtype="int8"),
    "`diloco_fsdp`, int8, 2 fragments, delay 1": partial(
        _DILOCO, across_dtype="int8", fragments=2, overlap=1
    ),
}
"""Constructors of the strategies, by title. They are called with further arguments."""


class _MeasureMemory(pl.Callback):
    """Measure memory in the middle of a block."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == _STEPS:
            self.bytes = bytes_by_kind(trainer)


def measure(title: str) -> dict[str, float]:
    """Measure the memory of this rank by kind, in models. All ranks must call it."""
    ranks = dist.get_world_size() // GROUPS
    module, memory = Transformer(SIZE), _MeasureMemory()
    strategy = MEASURED[title](group_size=ranks, block_size=_BLOCK, warmup_steps=0)
    trainer = quiet_trainer(
        strategy, devices=ranks, num_nodes=GROUPS, max_epochs=1, callbacks=[memory]
    )
    data: Any = [torch.zeros(1)] * _STEPS
    trainer.fit(module, DataLoader(data, batch_size=None))
    return {kind: nbytes / module.model_bytes for kind, nbytes in memory.bytes.items()}


def measure_all() -> dict[str, dict[str, float]]:
    """Call :func:`measure` for all strategies in ``MEASURED``."""
    return {title: measure(title) for title in MEASURED}


def main() -> None:
    """Write the results into the folder of the first argument."""
    report(sys.argv[1], measure_all)


if __name__ == "__main__":
    main()
