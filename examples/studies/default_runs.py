"""Runs of the study of defaults, one rank for each worker.

``RunStore`` starts this module on every rank, and documents its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import lightning.pytorch as pl
import torch

from examples.quiet import quiet_trainer, silence_lightning
from examples.run_store import run_job
from examples.studies.default_tasks import TASKS
from lightning_hier import (
    GTC,
    BMUFAdam,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    DiLoCoStrategy,
    GTCStrategy,
    HierarchicalStrategy,
    ModelAveragingStrategy,
)

_ONE_WORKER = "one worker"
# BMUF-Adam lowers the first beta to 0.5 by default.
_DDP_HALF_BETA1 = "ddp, first beta 0.5"
# In the runs of the report, these systems exchange the moments at every block.
_MOMENTS_OF_EVERY_BLOCK = BMUFAdam(moments_every=1)
SYSTEMS: dict[str, Callable[[], HierarchicalStrategy]] = {
    "ddp": lambda: HierarchicalStrategy(group_size="world"),
    _DDP_HALF_BETA1: lambda: HierarchicalStrategy(group_size="world"),
    _ONE_WORKER: lambda: HierarchicalStrategy(group_size="world"),
    "model_averaging": ModelAveragingStrategy,
    "bmuf": BMUFStrategy,
    "bmuf_adam": BMUFAdamStrategy,
    "bmuf_adam, moments_every=1": lambda: HierarchicalStrategy(
        group_size=1, block_sync=_MOMENTS_OF_EVERY_BLOCK
    ),
    "bmuf_adam, groups of 2": lambda: HierarchicalStrategy(
        group_size=2, block_sync=_MOMENTS_OF_EVERY_BLOCK
    ),
    "diloco": lambda: DiLoCoStrategy(group_size=1),
    "gtc": GTCStrategy,
    "bmuf_gtc, groups of 2": lambda: BMUFGTCStrategy(group_size=2),
    "gtc, 1%": lambda: GTCStrategy(density=0.01),
    "bmuf_gtc, groups of 2, 1%": lambda: BMUFGTCStrategy(group_size=2, density=0.01),
    "bmuf_gtc, groups of 4, 1%": lambda: BMUFGTCStrategy(group_size=4, density=0.01),
    "gtc, 1%, and bmuf_adam, groups of 2": lambda: HierarchicalStrategy(
        group_size=2, gradient_sync=GTC(density=0.01), block_sync=_MOMENTS_OF_EVERY_BLOCK
    ),
    "gtc, 1%, no warm-up": lambda: GTCStrategy(density=0.01, warmup_steps=0),
    "averages of models and moments": lambda: HierarchicalStrategy(
        group_size=1,
        block_sync=BMUFAdam(
            block_size=4, block_momentum=0.0, moments="average", local_beta1="keep"
        ),
    ),
    "bmuf, eta 0.5": lambda: BMUFStrategy(block_momentum=0.5),
    "bmuf, eta 0.75": lambda: BMUFStrategy(block_momentum=0.75),
    "bmuf, eta 0.75, DDP's rate": lambda: BMUFStrategy(block_momentum=0.75, local_lr="keep"),
    "bmuf, momentum reset": lambda: BMUFStrategy(local_momentum="reset"),
    "bmuf, momentum averaged": lambda: BMUFStrategy(local_momentum="average"),
    "bmuf, blocks of 4": lambda: BMUFStrategy(block_size=4),
    "model_averaging, blocks of 4": lambda: ModelAveragingStrategy(block_size=4),
    "model_averaging, blocks of 8": lambda: ModelAveragingStrategy(block_size=8),
    "bmuf, blocks of 15": lambda: BMUFStrategy(block_size=15),
    "diloco, outer momentum 0.3": lambda: DiLoCoStrategy(group_size=1, outer_momentum=0.3),
    "gtc of gradients": lambda: GTCStrategy(of="gradient"),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Settings of a run.

    Attributes:
        task: a key of ``TASKS``.
        system: a key of ``SYSTEMS``.
        rate: learning rate. None: that of the task.
        workers: N, number of workers.
        steps: number of steps of a worker, or 0 if the task has a number of epochs.
        seed: seed of the initial model and of the order of the data.
        split: split that is evaluated after training, ``"valid"`` or ``"test"``.

    """

    task: str = "language"
    system: str
    rate: float | None = None
    workers: int
    steps: int
    seed: int
    split: str = "valid"

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return 1 if self.system == _ONE_WORKER else self.workers

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Settings of a run, and the value of the task's measure at its end."""

    settings: dict[str, Any]
    value: float


def train(run: Run) -> Result:
    """Train, and return the result. Every rank must call it."""
    pl.seed_everything(run.seed, verbose=False)
    torch.set_num_threads(1)
    task = TASKS[run.task]
    model, data = task.build(run.seed, run.rate, 0.5 if run.system == _DDP_HALF_BETA1 else 0.9)
    trainer = quiet_trainer(
        devices=run.ranks,
        strategy=SYSTEMS[run.system](),
        **task.trainer_arguments(run.steps, run.ranks),
    )
    trainer.fit(model, data)
    if run.split == "test":
        trainer.test(model, data, verbose=False)
    value = float(trainer.callback_metrics[f"{run.split}/{task.measure}"])
    return Result(settings=run.portable_settings(), value=value)


if __name__ == "__main__":
    silence_lightning()
    run_job(train, Run)
