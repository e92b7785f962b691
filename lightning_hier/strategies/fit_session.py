"""The objects of a rank while a Trainer fits with a synchronous strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.nn import Module

from lightning_hier.comm.blocks.trained import parameters_of
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import CommHook
from lightning_hier.loop.engine import Engine
from lightning_hier.loop.settings import Synchronisation
from lightning_hier.strategies.averaged_weights import AveragedWeights
from lightning_hier.strategies.batch_samples import batch_samples
from lightning_hier.strategies.checkpoints.run_state import RunState
from lightning_hier.strategies.data_position import DataPosition
from lightning_hier.strategies.elastic import ElasticFit, StateServer
from lightning_hier.strategies.lifecycle import EndOfData, GlobalModelLifecycle, OwnError
from lightning_hier.strategies.misuse import RawSteps
from lightning_hier.strategies.sigterm import QuietTermination
from lightning_hier.strategies.trainer_changes import TrainerChanges

Wrap = Callable[[Channel | None], Module]
"""Wraps the module in DDP over a channel, or unwraps it for None."""


class FitSession(Engine):
    """The engine in a fit, and what only a Trainer has: changes to it, and the place in its data.

    It is created when the Trainer has the optimizers, and dropped at teardown, so that no state of
    a ``fit`` affects the next one. A collective of the world.

    Args:
        trainer: Trainer that fits.
        settings: synchronisation, with numbers instead of ``"auto"``.
        changes: changes to the Trainer.
        position: position in the training data.
        communicators, nics, offload: as of the :class:`Engine`.
        wrap: see :data:`Wrap`.
        metrics_callback: logs metrics.
        elastic: connection with other groups, or None if groups do not come and go.

    Attributes:
        trainer, position, elastic: see above.
        accumulated_gradients: gradients of a resumed step by name, for the first step.
        state: state of this rank in a checkpoint.
        averages: averages of WeightAveraging callbacks.
        raw_steps: check that no step bypasses the strategy.

    """

    def __init__(
        self,
        trainer: pl.Trainer,
        settings: Synchronisation,
        *,
        changes: TrainerChanges,
        position: DataPosition,
        communicators: Communicators,
        nics: int | None,
        wrap: Wrap,
        metrics_callback: Callback,
        offload: bool = False,
        elastic: ElasticFit | None = None,
    ) -> None:
        scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
        super().__init__(
            trainer.lightning_module,
            trainer.optimizers,
            settings,
            communicators=communicators,
            grad_scale=lambda: 1.0 if scaler is None else float(scaler.get_scale()),
            nics=nics,
            offload=offload,
            membership=None if elastic is None else elastic.exchange,
        )
        self.trainer, self.position, self.elastic = trainer, position, elastic
        self.accumulated_gradients: dict[str, Any] = {}
        self._wrap, self._has_hook = wrap, isinstance(settings.gradient_sync, CommHook)
        self._over: Channel | None = None
        self.state = RunState(self)
        self.raw_steps = RawSteps(
            lambda: self.synchroniser.trained.parameters,
            lambda: self.synchroniser.evaluation.active or self.communicators.world.size == 1,
        )
        changes.on_close(self.raw_steps.remove)
        self.averages = AveragedWeights(trainer, self.communicators)
        self._surround_callbacks(changes, metrics_callback)
        self.wrap()

    def _surround_callbacks(self, changes: TrainerChanges, metrics_callback: Callback) -> None:
        """Put callbacks around those of the user, and replace handlers of signals."""
        synchroniser = self.synchroniser
        termination = QuietTermination(changes, synchroniser.health)
        # Averages of weights follow the global model, and callbacks of the user put them into the
        # module in its place.
        first = [
            OwnError(changes, self.communicators.progress),
            EndOfData(synchroniser.health),
            GlobalModelLifecycle(synchroniser.evaluation),
            self.averages,
        ]
        last = [] if self.elastic is None else [StateServer(self.elastic)]
        changes.surround_callbacks(first, [metrics_callback, termination, *last])

    def wrap(self) -> None:
        """Wrap the module over the ranks that average gradients now. A collective of them.

        They are the world in the warm-up, and the group after it.
        """
        self._over = over = self._ranks()
        self.reduction.close()  # first, because it refers to the old wrapper
        # DDP makes the ranks' parameters equal. What hooks have written since the last step stays.
        memory = self.worker.memory
        written = memory.written({p: p.detach() for p in memory.shared})
        written = {parameter: value.clone() for parameter, value in written.items()}
        with memory.group_model():
            self.reduction.attach(self._wrap(over), warming=self.synchroniser.warming)
        for parameter, value in written.items():
            parameter.detach().copy_(value)

    def wrap_if_changed(self) -> None:
        """Wrap the module again if these ranks, or the trainable parameters, have changed.

        DDP ignores parameters that were frozen when it was created.
        """
        reduction = self.reduction
        # Channels by identity: two channels of the same ranks have different process groups.
        same = self._over is self._ranks() and reduction.warming == self.synchroniser.warming
        trainable = {p for p in parameters_of(self.module) if p.requires_grad}
        if not (same and trainable <= reduction.reduced):
            self.wrap()

    def _ranks(self) -> Channel | None:
        """The ranks over which DDP wraps the module, or None if it is not wrapped.

        In a group of one rank, DDP's reducer would copy every gradient twice at every step without
        need. DDP is still used there for a hook of the user, and to return residuals of a run with
        larger groups.
        """
        channels = self.communicators
        ranks = channels.world if self.synchroniser.warming else channels.group
        used = self._has_hook or bool(self.worker.memory.tensors)
        return ranks if ranks.size > 1 or used else None

    def start(self) -> None:
        """Restore random states and gradients of a resumed run when training starts."""
        if self.accumulated_gradients:
            # Not earlier, because Lightning clears the gradients.
            self.state.set_gradients(self.accumulated_gradients)
            self.accumulated_gradients = {}
        self.position.start()

    def before_batch(self, batch: Any) -> None:
        """Count samples, and include parameters that were unfrozen, which is a collective."""
        # Not in a callback, because a search for the learning rate has only that of Lightning.
        if self.counts_samples:
            samples = batch_samples(self.trainer.lightning_module, batch)
            self.worker.count_samples(samples, range(len(self.optimizers)))
        trained, reduced = self.synchroniser.trained, self.reduction.reduced
        present = parameters_of(self.module)
        trained.known.require_kept(present)
        # In a group of one rank, DDP is used only until it has returned older residuals.
        temporary = self._over is not None and self._over.size == 1 and not self._has_hook
        if temporary or not (present <= trained.parameters and present <= reduced):
            self.synchroniser.admit_trainable(present)
            self.wrap_if_changed()
