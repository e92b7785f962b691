"""Has the workers of one rank take their steps in turns, where Lightning takes one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.strategies.misuse import WorkerWrites
from lightning_hier.strategies.private_names import require_names
from lightning_hier.strategies.reduction import Reduction
from lightning_hier.strategies.virtual_workers.by_hand import RoundByHand
from lightning_hier.strategies.virtual_workers.first_buffers import FirstBuffers
from lightning_hier.strategies.virtual_workers.loaders import WorkerBatches
from lightning_hier.strategies.virtual_workers.played import Played

_Kwargs = OrderedDict[str, Any]


class Turns:
    """Runs Lightning's optimization of a batch once for each local model of the rank.

    Lightning counts the round as one step, so that steps, epochs, schedules, and when it validates,
    logs and saves, are those of a run with a rank for each worker. What is logged for an epoch is
    the mean over the workers of this rank; what is logged for a step (``on_step``) is the last
    one's.

    Where several workers share a model, the closure that Lightning hands to the optimizer has each
    of them make its gradients, and then their mean.

    Args:
        trainer: about to fit.
        played: what the workers are played with.
        reduction: of their gradients.
        buffers: of workers that share a model.
        writes: finds writes that do not reach each worker as its own.
        before: called before each round.

    """

    def __init__(
        self,
        trainer: pl.Trainer,
        played: Played,
        reduction: Reduction,
        buffers: FirstBuffers,
        writes: WorkerWrites,
        before: Callable[[], None],
    ) -> None:
        self._trainer: Any = trainer
        self._models = played.models
        self._played = played
        self._random = played.random
        self._reduction = reduction
        self._buffers = buffers
        self._workers = range(1)
        self._writes = writes
        self._before = before

    def install(self) -> None:
        """Wrap the methods that train on a batch, and what comes after its hooks."""
        loop = self._trainer.fit_loop.epoch_loop
        automatic, manual = loop.automatic_optimization, loop.manual_optimization
        step, step_by_hand, make = automatic.run, manual.run, automatic._make_closure
        advance_end = loop.on_advance_end

        def run(optimizer: Optimizer, batch_idx: int, kwargs: _Kwargs) -> Any:
            return self._round(automatic, kwargs, lambda own: step(optimizer, batch_idx, own))

        def make_closure(kwargs: _Kwargs, optimizer: Optimizer, batch_idx: int) -> Closure:
            batch = kwargs["batch"]
            if not isinstance(batch, WorkerBatches):
                alone: Closure = make(kwargs, optimizer, batch_idx)
                return alone
            every = [OrderedDict(kwargs, batch=own) for own in batch.batches]
            closures = [make(own, optimizer, batch_idx) for own in every]
            return SharedClosure(closures, lambda: self._make_gradients(batch, closures))

        def run_by_hand(kwargs: _Kwargs) -> Any:
            return self._round(manual, kwargs, RoundByHand(self._trainer, step_by_hand).turn)

        def on_advance_end(fetcher: Any) -> None:
            self._writes.end_batch()
            advance_end(fetcher)

        loop.on_advance_end = on_advance_end
        automatic.run, automatic._make_closure = run, make_closure
        manual.run = run_by_hand

    def remove(self) -> None:
        """Give the loops their own methods back."""
        loop = self._trainer.fit_loop.epoch_loop
        loop.__dict__.pop("on_advance_end", None)
        for optimization in (loop.automatic_optimization, loop.manual_optimization):
            for name in ("run", "_make_closure"):
                optimization.__dict__.pop(name, None)

    def _round(self, optimization: Any, kwargs: _Kwargs, step: Callable[[_Kwargs], Any]) -> Any:
        batches = kwargs["batch"]
        assert isinstance(batches, WorkerBatches)
        self._before()
        self._writes.begin_step()
        output = None
        for workers in self._played.each():
            self._workers = workers
            if len(workers) > 1:
                batch: Any = batches.of(workers)
            else:
                batch = batches.batches[workers[0]]
                self._log_for(batch)
            progress = vars(optimization)[self._progress(optimization)]
            if not self._models.is_last:
                setattr(optimization, self._progress(optimization), deepcopy(progress))
            with self._random.of(workers[0]):
                output = step(OrderedDict(kwargs, batch=batch))
            setattr(optimization, self._progress(optimization), progress)
        self._writes.end_step()
        return output

    def _make_gradients(self, batch: WorkerBatches, closures: Sequence[Closure]) -> ClosureResult:
        """Have each worker of the present model make its own; at a step's end have their mean."""
        gradients = self._reduction.in_turns
        self._buffers.begin()
        for worker, own, closure in zip(self._workers, batch.batches, closures, strict=True):
            self._log_for(own)
            with self._as(worker), gradients.of(worker):
                output = closure.closure()
        if not self._trainer.fit_loop._should_accumulate():
            gradients.reduce(self._workers)
        return output

    @contextmanager
    def _as(self, worker: int) -> Iterator[None]:
        with ExitStack() as stack:
            if worker != self._workers[0]:  # whose random numbers are in place for the whole step
                stack.enter_context(self._random.of(worker))
                stack.enter_context(self._buffers.of_another())
            yield

    def _log_for(self, batch: Any) -> None:
        """Have Lightning read off this batch how much what is logged counts."""
        self._trainer._results.batch, self._trainer._results.batch_size = batch, None

    @staticmethod
    def _progress(optimization: Any) -> str:
        """Under which name the loop counts steps."""
        return (
            "optim_progress" if hasattr(optimization, "optim_progress") else "optim_step_progress"
        )


class SharedClosure(Closure):
    """What an optimizer calls for the gradients of all workers that share its model.

    Args:
        closures: of Lightning, one for each worker.
        make_gradients: has each of them called as its worker.

    """

    def __init__(
        self, closures: Sequence[Closure], make_gradients: Callable[[], ClosureResult]
    ) -> None:
        require_names(closures[0])
        super().__init__(closures[0]._step_fn)
        self._make_gradients = make_gradients

    @override
    def closure(self, *args: Any, **kwargs: Any) -> ClosureResult:
        """The last worker's result; gradients are those of all."""
        return self._make_gradients()
