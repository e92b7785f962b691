"""Training of one system in a plain loop, without a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

import lightning_hier
from benchmarks.performance import peers
from benchmarks.performance.systems import System
from benchmarks.performance.work import WorkModule


def train(module: WorkModule, system: System, steps: int, record: Callable[[], None]) -> None:
    """Train for so many steps, and call ``record`` after each. All ranks must call it."""
    optimizer = module.configure_optimizers()
    with _counting(module, optimizer, system) as count:
        dist.barrier()
        for index in range(steps):
            module.training_step(None, index).backward()
            module.on_before_optimizer_step(optimizer)
            optimizer.step()
            optimizer.zero_grad()
            count()
            record()


@contextmanager
def _counting(
    module: WorkModule, optimizer: Optimizer, system: System
) -> Iterator[Callable[[], None]]:
    """Context of the loop, and what it calls after each step."""
    if system.family == "ours":
        groups = lightning_hier.Groups(1)
        blocks = lightning_hier.attach(module, optimizer, groups=groups, **system.arguments)
        yield blocks.step
        blocks.detach()
        return
    # torchft counts the steps of the optimizer by itself. Its callback needs nothing else.
    _, [averager] = getattr(peers, system.factory)(**system.arguments)
    trainer: Any = SimpleNamespace(optimizers=[optimizer])
    averager.on_train_start(trainer, module)
    yield lambda: None
    averager.on_train_end(trainer, module)
