"""The objects of one rank while one Trainer fits with a synchronous strategy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.callbacks.progress import place_in_block, show_in_progress_bar
from lightning_hier.comm.blocks.health import OnNonfinite
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.gradients.reduction import Reduction
from lightning_hier.comm.worker import Worker
from lightning_hier.comm.worker_random import WorkerRandom
from lightning_hier.strategies.checkpoints.rank_files import RankFiles
from lightning_hier.strategies.checkpoints.run_state import State
from lightning_hier.strategies.data_position import DataPosition, IsolatedValidation
from lightning_hier.strategies.rank_groups import RankGroups
from lightning_hier.strategies.settings import Synchronisation
from lightning_hier.strategies.trainer_changes import TrainerChanges
from lightning_hier.strategies.training import Training, build_training


class FitSession:
    """Workers, gradient reduction, block synchronisation, and changes to the Trainer.

    Made when DDP is about to wrap the module and closed at teardown, so that nothing of one ``fit``
    reaches the next.

    Args:
        trainer: about to fit. The position in its data is followed from here on: a module may ask
            for their length when it makes its optimizers, which creates the data loaders.
        groups: of the strategy.

    Attributes:
        trainer: that fits.
        changes: to the Trainer.
        communicators: channels of this rank.
        worker_layout: which worker is in which group.
        numbers: of this rank's workers among all.
        workers: of this rank.
        random: the random states of the workers.
        position: the position in the training data.
        on_start: called when training starts.
        waiting: gradients of each worker of a step that is accumulated, until training starts.
        saved_under: saves of this job by the path of the checkpoint on this rank, oldest first.
        closed: whether training has ended.

    """

    def __init__(self, trainer: pl.Trainer, groups: RankGroups) -> None:
        self.trainer = trainer
        self.communicators = groups.communicators
        self.worker_layout = groups.worker_layout
        self.numbers = groups.own_workers
        self.workers = Worker.several(len(self.numbers))
        self._settings: Synchronisation | None = None
        self._reduction: Reduction | None = None
        self._training: Training | None = None
        self.changes = TrainerChanges(trainer)
        self.on_start: list[Callable[[], None]] = []
        self.waiting: Sequence[State] = ()
        self.saved_under: defaultdict[str, list[RankFiles]] = defaultdict(list)
        self.closed = False
        device = self.communicators.device
        self.random = WorkerRandom(len(self.numbers), device)
        validation = IsolatedValidation(self.changes, device)
        self.position = DataPosition(self.changes, self.random, validation)
        validation.install()
        self.position.install()

    def reduce(
        self,
        settings: Synchronisation,
        wrap: Callable[[Channel | None], Module],
    ) -> None:
        """Set how gradients are averaged, once the length of the run is known.

        Args:
            settings: with numbers in the place of ``"auto"``.
            wrap: wraps the module by DDP over a channel, or leaves it unwrapped for None.

        """
        self._settings = settings
        sync = settings.gradient_sync
        self._reduction = Reduction(self.communicators, self.workers, sync, self._grad_scale, wrap)

    @property
    def settings(self) -> Synchronisation:
        """How this run synchronises; set by :meth:`reduce`."""
        if self._settings is None:
            raise RuntimeError("a session has settings once the length of the run is known")
        return self._settings

    @property
    def reduction(self) -> Reduction:
        """Averages gradients; set by :meth:`reduce`."""
        if self._reduction is None:
            raise RuntimeError("a session reduces gradients once the length of the run is known")
        return self._reduction

    @property
    def training(self) -> Training:
        """Block synchronisation and its surroundings; set by :meth:`begin`."""
        if self._training is None:
            raise RuntimeError("a session trains from the moment when optimizers are set up")
        return self._training

    @property
    def begun(self) -> bool:
        """Whether :meth:`begin` has been called."""
        return self._training is not None

    @property
    def worker(self) -> Worker:
        """The first worker of this rank, often the only one."""
        return self.workers[0]

    @property
    def warming(self) -> bool:
        """Whether gradients are averaged over the whole world at present."""
        if self._training is None:
            return int(self.settings.warmup_steps) > 0
        return self._training.synchroniser.warming

    def wrap(self) -> None:
        """Wrap the module over the ranks that average gradients now. A collective of them."""
        self.reduction.wrap(warming=self.warming)

    def wrap_if_changed(self) -> None:
        """Wrap the module again if these ranks, or the trainable parameters, have changed.

        DDP ignores parameters that were frozen when it was made.
        """
        parameters = self.trainer.lightning_module.parameters()
        if not self.reduction.suits(parameters, warming=self.warming):
            self.wrap()

    def before_batch(self) -> None:
        """Include parameters that have been unfrozen. May be a collective of the group."""
        self.training.synchroniser.admit_trainable()
        # Faster than over the module, from which some of them may have been removed.
        trained = self.training.synchroniser.trained.parameters
        if not self.reduction.suits(trained, warming=self.warming):
            self.wrap_if_changed()

    def start(self) -> None:
        """Restore random numbers and gradients of a resumed run, when training starts."""
        for act in self.on_start:
            act()
        self.on_start.clear()
        self.waiting = ()
        self.position.start()

    def rewind(self) -> None:
        """Forget the state of training, before another one is loaded."""
        self.training.synchroniser.rewind()
        for worker in self.workers:
            worker.memory.tensors.clear()
        self.position.rewind()

    def begin(
        self,
        optimizers: Sequence[Optimizer],
        *,
        on_nonfinite: OnNonfinite = "error",
        join: bool = False,
        watching: Sequence[Callback] = (),
    ) -> None:
        """Start counting steps and change the Trainer. A collective of the world.

        Args:
            optimizers: of the module; each has its own block.
            on_nonfinite: what becomes of groups whose models are not finite.
            join: whether ranks that have run out of batches join the others.
            watching: callbacks that log metrics.

        """
        self._training = training = build_training(self, optimizers, on_nonfinite=on_nonfinite)
        training.termination.install()
        training.raw_steps.install()
        self.changes.on_close(training.raw_steps.remove)
        last = [*watching, training.termination]
        self.changes.surround_callbacks(training.callbacks(join=join), last)
        traffic = self.communicators.traffic
        self.changes.on_close(show_in_progress_bar(self.trainer, traffic, self._place_in_block))

    @contextmanager
    def accumulated(self, workers: Sequence[int], number: int) -> Iterator[None]:
        """Have ``.grad`` hold the gradients of one worker in a step that is accumulated.

        Args:
            workers: of this rank, whose model is in the module.
            number: one of them.

        """
        if len(self.workers) == 1 or (len(workers) == 1 and not self.warming):
            yield  # its gradients are saved with its model
            return
        with self.reduction.in_turns.of(number):
            yield

    def metrics(self) -> dict[str, float]:
        """Return metrics of gradients and blocks, by name."""
        found = {} if self._reduction is None else self._reduction.metrics()
        if self._training is not None:
            found |= self._training.synchroniser.log.metrics(self.worker.steps)
        return found

    @property
    def scaler(self) -> Any:
        """The GradScaler of fp16 loss scaling, or None."""
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def _grad_scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler is not None else 1.0

    def _place_in_block(self) -> str:
        block_sync = self.settings.block_sync
        steps = None if block_sync is None else block_sync.steps
        return place_in_block(self.worker, steps, int(self.settings.warmup_steps))

    def close(self) -> None:
        """Take back changes to the Trainer, and hooks of parameters."""
        self.closed = True
        self.changes.close()
        if self._reduction is not None:
            self._reduction.close()
