"""Steps of all virtual workers of a rank, where Lightning makes one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.strategies.misuse import WorkerWrites
from lightning_hier.strategies.private_names import check_names
from lightning_hier.strategies.virtual_workers.first_buffers import FirstBuffers
from lightning_hier.strategies.virtual_workers.loaders import WorkerBatches
from lightning_hier.strategies.virtual_workers.schedule import WorkerSchedule

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


_Kwargs = OrderedDict[str, Any]


class WorkerSteps:
    """Runs Lightning's optimization of a batch once for each local model of the rank.

    Lightning counts all of them as one step, so that steps, epochs, schedules, validation, logging
    and saving are those of a run with a rank for each worker. A value logged for an epoch is the
    mean over the workers of this rank; a value logged for a step (``on_step``) is the last one's.

    Where several workers share a model, the closure of the optimizer computes the gradients of each
    of them, and then their mean.

    Args:
        session: of the fit.
        schedule: the order of the workers.
        synchroniser: synchronises the models of the workers.

    """

    def __init__(
        self, session: FitSession, schedule: WorkerSchedule, synchroniser: BlockSynchroniser
    ) -> None:
        self._trainer: Any = session.trainer
        self._changes = session.changes
        self._schedule = schedule
        self._models = schedule.models
        self._random = schedule.random
        self._reduction = session.reduction
        self._before = synchroniser.before_step
        self._buffers = FirstBuffers(schedule.models.buffers, session.communicators.group)
        self._writes = WorkerWrites(session.trainer.lightning_module, schedule.models)
        self._workers = range(1)

    def install(self) -> None:
        """Wrap the methods that train on a batch, and the method after its hooks."""
        loop = self._trainer.fit_loop.epoch_loop
        automatic, manual = loop.automatic_optimization, loop.manual_optimization
        replace, path = self._changes.replace, "fit_loop.epoch_loop."
        replace(path + "automatic_optimization.run", partial(self._run, automatic))
        replace(path + "automatic_optimization._make_closure", self._make_closure)
        replace(path + "manual_optimization.run", partial(self._run_manual, manual))
        replace(path + "on_advance_end", self._on_advance_end)

    def _run(self, optimization: Any, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(optimizer: Optimizer, batch_idx: int, kwargs: _Kwargs) -> Any:
            return self._step_all(optimization, kwargs, partial(step, optimizer, batch_idx))

        return run

    def _make_closure(self, make: Callable[..., Closure]) -> Callable[..., Closure]:
        def make_closure(kwargs: _Kwargs, optimizer: Optimizer, batch_idx: int) -> Closure:
            batch = kwargs["batch"]
            if not isinstance(batch, WorkerBatches):
                return make(kwargs, optimizer, batch_idx)
            every = [OrderedDict(kwargs, batch=own) for own in batch.batches]
            closures = [make(own, optimizer, batch_idx) for own in every]
            return SharedClosure(closures, lambda: self._make_gradients(batch, closures))

        return make_closure

    def _run_manual(self, optimization: Any, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(kwargs: _Kwargs) -> Any:
            one_step = ManualStep(self._trainer, step)
            return self._step_all(optimization, kwargs, one_step.of_next_worker)

        return run

    def _on_advance_end(self, advance_end: Callable[[Any], None]) -> Callable[[Any], None]:
        def on_advance_end(fetcher: Any) -> None:
            self._writes.end_batch()
            advance_end(fetcher)

        return on_advance_end

    def _step_all(self, optimization: Any, kwargs: _Kwargs, step: Callable[[_Kwargs], Any]) -> Any:
        batches = kwargs["batch"]
        assert isinstance(batches, WorkerBatches)
        self._before()
        self._writes.begin_step()
        output = None
        for workers in self._schedule.each():
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
        """Compute the gradients of each worker of a model, and at a step's end their mean."""
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
        """Have Lightning weight logged values by the size of this batch."""
        self._trainer._results.batch, self._trainer._results.batch_size = batch, None

    @staticmethod
    def _progress(optimization: Any) -> str:
        """Return the name of the attribute in which the loop counts steps."""
        return (
            "optim_progress" if hasattr(optimization, "optim_progress") else "optim_step_progress"
        )


class SharedClosure(Closure):
    """The closure of an optimizer for the gradients of all workers that share its model.

    Args:
        closures: of Lightning, one for each worker.
        make_gradients: calls each of them as its worker.

    """

    def __init__(
        self, closures: Sequence[Closure], make_gradients: Callable[[], ClosureResult]
    ) -> None:
        check_names(closures[0])
        super().__init__(closures[0]._step_fn)
        self._make_gradients = make_gradients

    @override
    def closure(self, *args: Any, **kwargs: Any) -> ClosureResult:
        """Return the result of the last worker; the gradients are those of all."""
        return self._make_gradients()


class ManualStep:
    """One step of all workers of a rank, each with a model of its own.

    ``training_step`` steps schedulers too, so every worker starts from the same scheduler state.

    Args:
        trainer: that fits.
        run: Lightning's method for one of them.

    """

    def __init__(self, trainer: Any, run: Callable[[OrderedDict[str, Any]], Any]) -> None:
        self._loop = trainer.fit_loop.epoch_loop.manual_optimization
        self._run = run
        self._schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._begun = [deepcopy(own.state_dict()) for own in self._schedulers]
        self._of_first: int | None = None

    def of_next_worker(self, kwargs: OrderedDict[str, Any]) -> Any:
        """Run the step of the next worker.

        Raises:
            ValueError: a worker steps more than once, or not as often as the first: blocks end
                with a step of all workers.

        """
        if self._of_first is not None:
            for scheduler, begun in zip(self._schedulers, self._begun, strict=True):
                scheduler.load_state_dict(deepcopy(begun))
        before = self._loop.optim_step_progress.total.ready
        output = self._run(kwargs)
        taken = self._loop.optim_step_progress.total.ready - before
        if taken > 1:
            raise ValueError(
                f"virtual_workers above 1 can't be combined with {taken} optimizer steps in one "
                "training_step, since a block could end between them: take one, or start a rank "
                "for each worker"
            )
        if self._of_first not in (None, taken):
            raise ValueError(
                f"with virtual_workers above 1 all workers step together, but training_step took "
                f"{self._of_first} optimizer steps as the first worker of this rank and {taken} "
                "as another: decide by what is the same for all, such as batch_idx"
            )
        self._of_first = taken
        return output
