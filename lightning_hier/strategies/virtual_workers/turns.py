"""Has the workers of one rank take their steps in turns, where Lightning takes one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.worker_random import WorkerRandom
from lightning_hier.strategies.virtual_workers.loaders import WorkerBatches


@dataclass(frozen=True)
class Played:
    """What one rank plays its workers with.

    Attributes:
        models: of the workers, with the state of their optimizers.
        random: what they draw from.

    """

    models: LocalModels
    random: WorkerRandom

    @classmethod
    def of(
        cls, module: Module, optimizers: Sequence[Optimizer], number: int, device: torch.device
    ) -> Played:
        """So many workers, which all begin with the present model and random numbers."""
        return cls(LocalModels(module, optimizers, number), WorkerRandom(number, device))


class Turns:
    """Runs Lightning's optimization of a batch once for each local model of the rank.

    Lightning counts the round as one step, so that steps, epochs, schedules, and when it validates,
    logs and saves, are those of a run with a rank for each worker. What a step logs is the mean
    over the workers of this rank where Lightning takes means.

    Args:
        trainer: about to fit.
        played: what the workers are played with.
        before: called before each round.

    """

    def __init__(self, trainer: pl.Trainer, played: Played, before: Callable[[], None]) -> None:
        self._trainer: Any = trainer
        self._models = played.models
        self._random = played.random
        self._before = before

    def install(self) -> None:
        """Wrap the methods that train on a batch."""
        loop = self._trainer.fit_loop.epoch_loop
        automatic, manual = loop.automatic_optimization, loop.manual_optimization
        step, step_by_hand = automatic.run, manual.run

        def run(optimizer: Optimizer, batch_idx: int, kwargs: OrderedDict[str, Any]) -> Any:
            return self._round(automatic, kwargs, lambda own: step(optimizer, batch_idx, own))

        automatic.run = run
        manual.run = lambda kwargs: self._round(manual, kwargs, step_by_hand)

    def remove(self) -> None:
        """Give the loops their own methods back."""
        loop = self._trainer.fit_loop.epoch_loop
        for optimization in (loop.automatic_optimization, loop.manual_optimization):
            optimization.__dict__.pop("run", None)

    def _round(
        self,
        optimization: Any,
        kwargs: OrderedDict[str, Any],
        step: Callable[[OrderedDict[str, Any]], Any],
    ) -> Any:
        batches = kwargs["batch"]
        assert isinstance(batches, WorkerBatches)
        self._before()
        output = None
        for number in self._models.each():
            batch = batches.batches[number]
            # From which Lightning reads off the batch size of what is logged.
            self._trainer._results.batch, self._trainer._results.batch_size = batch, None
            progress = vars(optimization)[self._progress(optimization)]
            if not self._models.is_last:
                setattr(optimization, self._progress(optimization), deepcopy(progress))
            with self._random.of(number):
                output = step(OrderedDict(kwargs, batch=batch))
            setattr(optimization, self._progress(optimization), progress)
        return output

    @staticmethod
    def _progress(optimization: Any) -> str:
        """Under which name the loop counts steps."""
        return (
            "optim_progress" if hasattr(optimization, "optim_progress") else "optim_step_progress"
        )
