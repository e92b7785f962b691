"""Steps of all virtual workers of a rank, within one step of Lightning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.comm.blocks.local_values import SavedTensors
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.strategies.misuse import WorkerWrites
from lightning_hier.strategies.virtual_workers.loaders import WorkerBatches

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


_Kwargs = OrderedDict[str, Any]


class WorkerSteps:
    """Runs Lightning's optimization of a batch once for each local model of the rank.

    Lightning counts all of them as one step, so steps, epochs, schedules, validation, logging and
    saving are those of a run with one rank per worker. A value logged for an epoch is the mean over
    the workers of this rank. A value logged for a step (``on_step``) is that of the last worker.

    If several workers share a model, the closure of the optimizer computes the gradients of each
    of them, and then their mean.

    Args:
        session: session of the fit. Methods of its Trainer that train on a batch are replaced.

    """

    def __init__(self, session: FitSession) -> None:
        self._session = session
        self._trainer: Any = session.trainer
        self._models = session.models
        self._random = session.random
        self._writes = WorkerWrites(session.trainer.lightning_module, session.models)
        self._workers = range(1)
        self._first_buffers: list[Tensor] = []
        path = "fit_loop.epoch_loop."
        session.changes.replace(path + "automatic_optimization.run", self._run)
        session.changes.replace(path + "automatic_optimization._make_closure", self._make_closure)
        session.changes.replace(path + "on_advance_end", self._on_advance_end)

    def _make_closure(
        self, make: Callable[..., Closure], kwargs: _Kwargs, optimizer: Optimizer, batch_idx: int
    ) -> Closure:
        batch = kwargs["batch"]
        if not isinstance(batch, WorkerBatches):
            return make(kwargs, optimizer, batch_idx)
        by_worker = [OrderedDict(kwargs, batch=one) for one in batch.batches]
        closures = [make(arguments, optimizer, batch_idx) for arguments in by_worker]
        # Each closure clears the gradients and computes those of its worker.
        return Closure(partial(self._make_gradients, batch, closures))

    def _on_advance_end(self, advance_end: Callable[[Any], None], fetcher: Any) -> None:
        # After the hooks of the batch, and before validation swaps in the global model.
        self._writes.end_batch()
        advance_end(fetcher)

    def _run(
        self, step: Callable[..., Any], optimizer: Optimizer, batch_idx: int, kwargs: _Kwargs
    ) -> Any:
        """Make the step of each model."""
        loop = self._trainer.fit_loop.epoch_loop.automatic_optimization
        batches = kwargs["batch"]
        assert isinstance(batches, WorkerBatches)
        # Before the loop, because the first step after the warm-up creates the other models.
        self._session.synchroniser.before_step()
        self._writes.begin_step()
        output = None
        for workers in self._session.workers_by_model():
            self._workers = workers
            if len(workers) > 1:
                batch: Any = batches.of(workers)
            else:
                batch = batches.batches[workers[0]]
                self._log_for(batch)
            progress = loop.optim_progress
            # Lightning counts the step of every model. Only that of the last one is kept.
            if not self._models.is_last:
                loop.optim_progress = deepcopy(progress)
            # `_as` activates those of the other workers while their gradients are computed.
            with self._random.of(workers[0]):
                output = step(optimizer, batch_idx, OrderedDict(kwargs, batch=batch))
            loop.optim_progress = progress
        self._writes.end_step()
        return output

    def _make_gradients(self, batch: WorkerBatches, closures: Sequence[Closure]) -> ClosureResult:
        """Compute the gradients of each worker of a model and, at the end of a step, their mean."""
        gradients = self._session.reduction.worker_gradients
        self._share_buffers()
        for worker, one, closure in zip(self._workers, batch.batches, closures, strict=True):
            self._log_for(one)
            with self._as(worker), gradients.of(worker):
                output = closure.closure()
        # Batches that only accumulate leave the gradients with their workers, as DDP's no_sync.
        if not self._trainer.fit_loop._should_accumulate():
            gradients.reduce(self._workers)
        return output

    def _share_buffers(self) -> None:
        """Copy the buffers of a group's first worker to the others. A collective of the group.

        DDP does this before every forward pass, so changes by other workers are lost.
        """
        buffers = self._models.buffers
        buffers.reclaim()
        broadcast_tensors_(buffers.tensors, self._session.communicators.group, "buffers")
        # Clones, because the first worker changes the buffers before the others start from them.
        self._first_buffers = [buffer.clone() for buffer in buffers.tensors]

    @contextmanager
    def _as(self, worker: int) -> Iterator[None]:
        """Use the random state of a worker, and keep the buffers of the first worker."""
        if worker == self._workers[0]:  # its random state is active during the whole step
            yield
            return
        buffers, first = self._models.buffers, SavedTensors()
        buffers.reclaim()
        tensors = list(buffers.tensors)
        first.save(tensors)
        if tensors:  # torch refuses empty lists
            torch._foreach_copy_(tensors, self._first_buffers)
        try:
            with self._random.of(worker):
                yield
        finally:
            buffers.reclaim()
            first.restore()

    def _log_for(self, batch: Any) -> None:
        """Make Lightning weight logged values by the size of this batch."""
        self._trainer._results.batch, self._trainer._results.batch_size = batch, None
