"""Workers with planted faults, under a Trainer and in the twins.

A group is excluded if its model, averaged buffers or exchanged optimizer state are not finite at
the end of a block. The outer step then uses the mean of the other groups, with eta, zeta and rho of
all groups. The excluded group starts from W_g as all groups do. Its residuals become zero, and so
does its momentum unless momentum is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor

from tests.equivalence.adam_twins import AdamTwin, AdamWorker
from tests.equivalence.tasks import Regression, TwoOptimizers, rank_number
from tests.equivalence.twins import Sgd, Twin, Values, Worker

Where = Literal["loss", "weight", "buffer", "exp_avg", "exp_avg_sq"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of ``rank`` at the start of batch ``batch`` of the run, counted from 0.

    ``"loss"`` multiplies the loss of this batch by ``value``, so that its gradient is not finite.
    The others set one element of the last tensor of their kind to ``value``.
    """

    batch: int
    rank: int
    where: Where = "loss"
    value: float = float("nan")


class _Faulty(pl.LightningModule):
    """Applies the faults of this rank. It precedes the module in the order of bases."""

    faults: Sequence[Fault] = ()
    begun = 0

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.begun += 1
        for fault in self._present_faults():
            if fault.where in ("weight", "buffer"):
                tensors = self.net.parameters if fault.where == "weight" else self.net.buffers
                _break(_last_float(tensors()), fault)
            elif fault.where != "loss":
                (optimizer,) = self.trainer.optimizers
                _break(optimizer.state[_last_float(self.net.parameters())][fault.where], fault)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss: Any = super().training_step(batch, batch_idx)
        for fault in self._present_faults():
            if fault.where == "loss":
                loss = loss * fault.value
        return loss

    def _present_faults(self) -> list[Fault]:
        here = rank_number(), self.begun - 1
        return [fault for fault in self.faults if (fault.rank, fault.batch) == here]


class FaultyRegression(_Faulty, Regression):
    """A module with faults and one optimizer."""


class FaultyTwoOptimizers(_Faulty, TwoOptimizers):
    """A module with faults and two optimizers."""


def _last_float(tensors: Any) -> Tensor:
    return [tensor for tensor in tensors if tensor.is_floating_point()][-1]


def _break(tensor: Tensor, fault: Fault) -> None:
    tensor.detach().view(-1)[0] = fault.value


class FaultyTwin(Twin):
    """Excludes groups that are not finite at a block's end, and counts them in ``excluded``."""

    excluded = 0
    _index = 0  # of the optimizer whose block is checked
    _healthy: list[Worker] | None = None

    @property
    def leaders(self) -> list[Worker]:
        if self._healthy is not None:
            return self._healthy
        size = self.recipe.world if self.warming else self.recipe.group
        groups = (self.workers[i : i + size] for i in range(0, self.recipe.world, size))
        return [group[0] for group in groups if not any(map(self._is_nonfinite, group))]

    def strike(self, fault: Fault) -> None:
        """Apply a fault to a worker. The caller applies faults of the loss."""
        worker = self.workers[fault.rank]
        if fault.where == "weight":
            _break(_last_float(worker.model.parameters()), fault)
        elif fault.where == "buffer":
            _break(_last_float(worker.model.buffers()), fault)
        elif isinstance(worker, AdamWorker):
            memory = list(worker.memory.values())[-1]
            _break(memory.m if fault.where == "exp_avg" else memory.v, fault)

    def _is_nonfinite(self, worker: Worker) -> bool:
        """Whether tensors of the block of the current optimizer are not finite.

        Buffers belong to the block of the first optimizer.
        """
        names = self.optimizers[self._index].names
        values = [worker.values()[name] for name in names]
        if self._index == 0:
            values += worker.model.buffers()
        if self.recipe.local_momentum == "average":
            values += [worker.momenta[name] for name in names if name in worker.momenta]
        if isinstance(worker, AdamWorker):
            memory = [worker.memory[name] for name in names]
            values += [moment for one in memory for moment in (one.m, one.v)]
        return not all(value.isfinite().all() for value in values)

    def _step_group(self, group: list[Worker], sgd: Sgd, warming: bool) -> None:
        for name in sgd.names if self.recipe.threshold is not None else ():
            gradients = [worker.gradients[name] for worker in group if name in worker.gradients]
            if not all(gradient.isfinite().all() for gradient in gradients):
                # No worker of the group sends gradients of such a step, and residuals do not
                # change.
                for worker in group:
                    gradient = worker.gradients.pop(name)
                    worker.descend(name, torch.full_like(gradient, torch.nan), sgd)
        super()._step_group(group, sgd, warming)

    def _mean(self, index: int) -> Values:
        self._index = index
        return super()._mean(index)

    def _made(self, worker: Worker, index: int) -> Values:
        """The local update of a worker, zero if its model is not finite."""
        self._index = index
        update = super()._made(worker, index)
        if self._is_nonfinite(worker):
            return {name: torch.zeros_like(value) for name, value in update.items()}
        return update

    def _mean_buffer(self, name: str) -> Tensor:
        self._index = 0
        return super()._mean_buffer(name)

    def _end_block(self, index: int) -> None:
        self._index = index
        healthy = self._healthy = self.leaders
        super()._end_block(index)
        self._healthy = None
        size = self.recipe.group
        for first in range(0, self.recipe.world, size):
            if any(self.workers[first] is leader for leader in healthy):
                continue
            self.excluded += 1
            for worker in self.workers[first : first + size]:
                for name in self.optimizers[index].names:
                    worker.residuals.pop(name, None)
                    if self.recipe.local_momentum != "average":
                        worker.momenta.pop(name, None)


class FaultyAdamTwin(FaultyTwin, AdamTwin):
    """The same with Adam. All workers get the moments of the healthy groups."""
