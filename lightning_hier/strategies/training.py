"""Steps of one rank, and what happens around them, once optimizers are set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.blocks.health import OnNonfinite
from lightning_hier.comm.blocks.joining import Joining
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.shard_placement import fewest_nics
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.worker import Worker
from lightning_hier.strategies.averaged_weights import AveragedWeights
from lightning_hier.strategies.checkpoints.run_state import RunState
from lightning_hier.strategies.lifecycle import EndOfData, EpochWithoutSteps, GlobalModelLifecycle
from lightning_hier.strategies.misuse import RawSteps
from lightning_hier.strategies.sigterm import QuietTermination
from lightning_hier.strategies.virtual_workers.schedule import WorkerSchedule
from lightning_hier.strategies.virtual_workers.worker_steps import WorkerSteps

if TYPE_CHECKING:
    from lightning_hier.strategies.fit_session import FitSession


@dataclass(frozen=True, kw_only=True)
class Training:
    """Block synchronisation and its surroundings, for the optimizers of one ``fit``.

    Attributes:
        communicators: channels of this rank.
        worker: the first worker of this rank.
        schedule: the order in which its workers make a step.
        synchroniser: synchronises models at the ends of blocks.
        termination: acts on signals.
        raw_steps: raises an error for steps that are not counted.
        state: the state of this rank in a checkpoint.
        averaged_weights: the averages of WeightAveraging callbacks.

    """

    communicators: Communicators
    worker: Worker
    schedule: WorkerSchedule
    synchroniser: BlockSynchroniser
    termination: QuietTermination
    raw_steps: RawSteps
    state: RunState
    averaged_weights: AveragedWeights

    @contextmanager
    def step(self, optimizer: int) -> Iterator[None]:
        """Surround a step of an optimizer, and count it. A collective at the end of a block."""
        synchroniser = self.synchroniser
        if not self.schedule.is_virtual:  # else once before the steps of all workers
            synchroniser.before_step()
        blocks = synchroniser.blocks
        stepping = nullcontext() if blocks is None else blocks[optimizer].stepping()
        with self.raw_steps.counted(), stepping:
            yield
        if self.schedule.models.is_last:
            synchroniser.after_step(optimizer)
            self.agree_on_signal()

    def agree_on_signal(self) -> None:
        """Exchange signals if a rank has received one. A collective of the world then."""
        if self.synchroniser.health.take_signal():
            self.termination.agree(self.communicators.device)

    def obey_signal(self) -> None:
        """Act on a signal at once, while other ranks do at the end of their batch. A collective."""
        self.agree_on_signal()
        self.termination.act()

    def global_state(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call ``read`` while the module holds the global model. A collective."""
        with profiler_range("hier/global_model/swap_in"):
            self.synchroniser.evaluation.swap_in_global_model()
        state = read()
        if self.synchroniser.evaluation.active:
            # The module is about to hold the local model again.
            state = {
                name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in state.items()
            }
            self.synchroniser.evaluation.swap_back()
        return state

    def callbacks(self, *, join: bool) -> list[Callback]:
        """Return the callbacks that precede those of the user.

        Args:
            join: whether ranks that have run out of batches join the others.

        """
        synchroniser = self.synchroniser
        health = synchroniser.health
        joining = Joining(self.communicators, self.worker, health, synchroniser.end_block)
        return [
            EndOfData(health, joining if join else None, self.obey_signal),
            EpochWithoutSteps(synchroniser.evaluation),
            GlobalModelLifecycle(synchroniser.evaluation),
            self.averaged_weights,
        ]


def build_training(
    session: FitSession,
    optimizers: Sequence[Optimizer],
    *,
    on_nonfinite: OnNonfinite,
) -> Training:
    """Make the objects of :class:`Training`; arguments are those of :meth:`FitSession.begin`."""
    trainer, module = session.trainer, session.trainer.lightning_module
    strategy: Any = trainer.strategy
    on_one_host = strategy.num_processes == strategy.world_size
    communicators, worker = session.communicators, session.worker
    worker.count_optimizers(len(optimizers))
    local = LocalModels(module, optimizers, communicators.models_per_rank)
    schedule = WorkerSchedule(local, session.random)
    synchroniser = BlockSynchroniser(
        module,
        optimizers,
        session.settings.block_sync,
        communicators=communicators,
        worker=worker,
        models=local,
        warmup_steps=int(session.settings.warmup_steps),
        nics=None if on_one_host else fewest_nics(communicators.device),
        on_nonfinite=on_nonfinite,
    )
    if session.scaler is not None:
        synchroniser.on_block = LossScale(session.scaler, worker).after_block
    synchroniser.on_warm = session.wrap
    if schedule.is_virtual:
        WorkerSteps(session, schedule, synchroniser).install()
    return Training(
        communicators=communicators,
        worker=worker,
        schedule=schedule,
        synchroniser=synchroniser,
        termination=QuietTermination(session.changes, synchroniser.health.note_signal),
        raw_steps=RawSteps(
            lambda: synchroniser.trained.parameters,
            lambda: synchroniser.evaluation.active or communicators.world.size == 1,
        ),
        state=RunState(module, optimizers, synchroniser, session.workers),
        averaged_weights=AveragedWeights(
            trainer, communicators, lambda: synchroniser.trained.kept_equal
        ),
    )


class LossScale:
    """Resets the scale of fp16 gradients to its value when the model was last healthy.

    Every step with a non-finite gradient halves the scale. A model with NaN has such steps until
    its block ends, and at the scale that is left then, gradients would vanish for a long time.

    Args:
        scaler: the GradScaler of this rank.
        worker: the worker of this rank, which keeps the scale.

    """

    def __init__(self, scaler: Any, worker: Worker) -> None:
        self._scaler = scaler
        self._worker = worker
        if worker.loss_scale is None:
            worker.loss_scale = float(scaler.get_scale())

    def after_block(self, report: BlockReport) -> None:
        """Note the scale of a healthy worker, or give it back to one that restarts."""
        if report.restarted:
            healthy = {"scale": self._worker.loss_scale, "_growth_tracker": 0}
            self._scaler.load_state_dict(self._scaler.state_dict() | healthy)
        else:
            self._worker.loss_scale = float(self._scaler.get_scale())
