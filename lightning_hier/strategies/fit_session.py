"""What exists on one rank while one Trainer fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning.pytorch as pl
from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.comm.agreement import raise_everywhere, require_same
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.carriers import fewest_network_cards
from lightning_hier.comm.blocks.health import OnNonfinite
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.synchroniser import Synchroniser
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GradientSync
from lightning_hier.comm.worker import Worker
from lightning_hier.comm.worker_random import WorkerRandom
from lightning_hier.strategies import checks
from lightning_hier.strategies.averaged_weights import AveragedWeights
from lightning_hier.strategies.checkpoints.rank_files import RankFiles
from lightning_hier.strategies.checkpoints.run_state import RunState, State
from lightning_hier.strategies.data_position import DataPosition
from lightning_hier.strategies.loss_scale import LossScale
from lightning_hier.strategies.misuse import RawSteps, WorkerWrites
from lightning_hier.strategies.reduction import Reduction
from lightning_hier.strategies.sigterm import QuietTermination
from lightning_hier.strategies.training import Training
from lightning_hier.strategies.validation import IsolatedValidation
from lightning_hier.strategies.virtual_workers.played import Played


class FitSession:
    """The workers that this rank plays, the synchroniser, and changes to a Trainer.

    Made when DDP is about to wrap the module and closed at teardown, so that nothing of one ``fit``
    reaches the next.

    Args:
        trainer: about to fit. Its data are followed from here on: a module may ask for their length
            when it makes its optimizers, and have them begun by that.
        communicators: channels of this rank.
        virtual_workers: that this rank plays in turns.

    Attributes:
        workers: that this rank plays.
        random: what each worker draws from.
        position: where training stands in its data.
        on_start: to be called when training starts.
        waiting: gradients of each worker of a step that is accumulated, until training starts.
        saved_under: saves of this job by what this rank calls the checkpoint, the oldest first.

    """

    def __init__(
        self,
        trainer: pl.Trainer,
        communicators: Communicators,
        virtual_workers: int,
    ) -> None:
        self._communicators = communicators
        self._warmup_steps = 0
        self.workers = Worker.several(virtual_workers)
        self._reduction: Reduction | None = None
        self._compressed: GradientSync | None = None
        self._training: Training | None = None
        self._at_end = ExitStack()
        self.on_start: list[Callable[[], None]] = []
        self.waiting: Sequence[State] = ()
        self.saved_under: defaultdict[str, list[RankFiles]] = defaultdict(list)
        self.random = WorkerRandom(virtual_workers, communicators.device)
        validation = IsolatedValidation(trainer, communicators.device)
        self.position = DataPosition(trainer, self.random, validation)
        self._change(validation, self.position)

    def reduce(
        self, warmup_steps: int, gradient_sync: GradientSync, grad_scale: Callable[[], float]
    ) -> None:
        """Say how gradients are averaged; not known before the run's length may be asked for.

        Args:
            warmup_steps: first steps, with averages over the whole world.
            gradient_sync: how gradients are averaged in a group.
            grad_scale: the present factor of fp16 loss scaling.

        """
        self._warmup_steps = warmup_steps
        workers = self._communicators.world.size * len(self.workers)
        self._compressed = None if workers == self._communicators.models else gradient_sync
        self._reduction = Reduction(self._communicators, self.workers, gradient_sync, grad_scale)

    @property
    def reduction(self) -> Reduction:
        """Of the workers' gradients; there once :meth:`reduce` has been called."""
        if self._reduction is None:
            raise RuntimeError("a session reduces gradients from the moment when it is told how")
        return self._reduction

    @property
    def training(self) -> Training:
        """What trains; there once :meth:`begin` has been called."""
        if self._training is None:
            raise RuntimeError("a session trains from the moment when optimizers are set up")
        return self._training

    @property
    def begun(self) -> bool:
        """Whether :meth:`begin` has come to its end."""
        return self._training is not None

    @property
    def worker(self) -> Worker:
        """The first that this rank plays, often the only one."""
        return self.workers[0]

    def start(self) -> None:
        """Training starts now."""
        for act in self.on_start:
            act()
        self.on_start.clear()
        self.waiting = ()
        self.position.start()

    def rewind(self) -> None:
        """Forget what this session has trained, before a state is loaded."""
        self.training.synchroniser.rewind()
        for worker in self.workers:
            worker.memory.tensors.clear()
        self.position.rewind()

    @property
    def warming(self) -> bool:
        """Whether gradients are averaged over the whole world at present."""
        if self._training is None:
            return self._warmup_steps > 0
        return self._training.synchroniser.warming

    def begin(
        self,
        trainer: pl.Trainer,
        module: Module,
        optimizers: Sequence[Optimizer],
        block_sync: BlockSync | None,
        *,
        one_host: bool,
        on_nonfinite: OnNonfinite = "error",
        scaler: Any = None,
    ) -> None:
        """Start counting steps and quieten the Trainer. A collective of the world.

        Args:
            trainer: about to fit ``module`` with ``optimizers``.
            module: the model.
            optimizers: each has its own block.
            block_sync: how models are synchronised.
            one_host: whether all ranks are on one host.
            on_nonfinite: what becomes of groups whose models are not finite.
            scaler: the GradScaler of this rank, if it scales gradients.

        Raises:
            ValueError: on every rank, if optimizers differ or do not suit ``block_sync``.

        """
        device = self._communicators.device
        raise_everywhere(checks.optimizer_problem(optimizers, block_sync), device)
        require_same(checks.optimizer_settings(optimizers), device)
        models = self._communicators.models
        checks.warn_of_optimizers(optimizers, self._compressed, block_sync, models)
        checks.log_choices(optimizers, block_sync, models)
        self.worker.count_optimizers(len(optimizers))
        local = LocalModels(module, optimizers, self._communicators.models_per_rank)
        played = Played(local, self.random)
        synchroniser = Synchroniser(
            module,
            optimizers,
            block_sync,
            communicators=self._communicators,
            worker=self.worker,
            models=local,
            warmup_steps=self._warmup_steps,
            cards=None if one_host else fewest_network_cards(device),
            on_nonfinite=on_nonfinite,
        )
        if scaler is not None:
            synchroniser.on_block = LossScale(scaler, self.worker).after_block
        termination = QuietTermination(trainer, synchroniser.statuses.note_signal)
        raw_steps = RawSteps(
            lambda: synchroniser.trained.parameters,
            lambda: synchroniser.shown or self._communicators.world.size == 1,
        )
        self._change(termination, raw_steps)
        if len(self.workers) > 1:
            # Here, so that nobody else needs the names of Lightning that these need.
            from lightning_hier.strategies.virtual_workers.first_buffers import FirstBuffers
            from lightning_hier.strategies.virtual_workers.turns import Turns

            buffers = FirstBuffers(local.buffers, self._communicators.group)
            writes = WorkerWrites(module, local)
            before = synchroniser.before_step
            self._change(Turns(trainer, played, self.reduction, buffers, writes, before))
        self._training = Training(
            communicators=self._communicators,
            worker=self.worker,
            played=played,
            synchroniser=synchroniser,
            termination=termination,
            raw_steps=raw_steps,
            state=RunState(module, optimizers, synchroniser, self.workers),
            averaged_weights=AveragedWeights(
                trainer, self._communicators, lambda: synchroniser.trained.kept_equal
            ),
        )

    def _change(self, *changes: Any) -> None:
        """Make changes to the Trainer, and have :meth:`close` take them back."""
        for change in changes:
            change.install()
            self._at_end.callback(change.remove)

    @contextmanager
    def accumulated(self, workers: Sequence[int], number: int) -> Iterator[None]:
        """Have ``.grad`` hold what a worker has of a step that is still accumulated.

        Args:
            workers: of this rank, whose model is in the module.
            number: one of them.

        """
        if len(self.workers) == 1 or (len(workers) == 1 and not self.warming):
            yield  # its gradients are put away with its model
            return
        with self.reduction.in_turns.of(number):
            yield

    def at_end(self, take_back: Callable[[], None]) -> None:
        """Have :meth:`close` call this too."""
        self._at_end.callback(take_back)

    def metrics(self) -> dict[str, float]:
        """What hook and blocks have to log, by name."""
        found = {} if self._reduction is None else self._reduction.metrics()
        if self._training is not None:
            found |= self._training.synchroniser.log.metrics(self.worker.steps)
        return found

    def close(self) -> None:
        """Take back what was changed about the Trainer and attached to parameters."""
        self._at_end.close()
        if self._reduction is not None:
            self._reduction.close()
