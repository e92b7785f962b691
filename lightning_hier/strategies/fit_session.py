"""The objects of a rank while a Trainer fits with a synchronous strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.optim import Optimizer

from lightning_hier.algorithms.kernels.native import prepare_loops
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.blocks.trained import parameters_of
from lightning_hier.comm.gradients.reduction import Reduction
from lightning_hier.comm.worker import Worker
from lightning_hier.loop.settings import Synchronisation
from lightning_hier.strategies.averaged_weights import AveragedWeights
from lightning_hier.strategies.batch_samples import batch_samples
from lightning_hier.strategies.checkpoints.run_state import RunState
from lightning_hier.strategies.data_position import DataPosition
from lightning_hier.strategies.elastic import ElasticFit, StateServer
from lightning_hier.strategies.lifecycle import EndOfData, GlobalModelLifecycle, OwnError
from lightning_hier.strategies.misuse import RawSteps
from lightning_hier.strategies.rank_groups import RankGroups
from lightning_hier.strategies.sigterm import QuietTermination
from lightning_hier.strategies.trainer_changes import TrainerChanges
from lightning_hier.strategies.wrapping import Wrap, Wrapping


class FitSession:
    """Residuals, gradient reduction, block synchronisation, and changes to the Trainer.

    It is created before the optimizers and closed at teardown, so that no state of a ``fit``
    affects the next one. :meth:`average` and :meth:`begin` set the attributes that
    depend on the length of the run and on the optimizers.

    Args:
        trainer: Trainer that is about to fit. The position in its data is recorded from here on,
            because a module may create the data loaders when it configures its optimizers.
        groups: groups of the strategy.
        elastic: connection with other groups, or None if groups do not come and go.

    Attributes:
        trainer: Trainer that fits.
        scaler: GradScaler of fp16 loss scaling, or None.
        changes: changes to the Trainer.
        communicators: channels of this rank.
        worker: residuals and step counts of this rank.
        position: position in the training data.
        settings: settings of the synchronisation in this run. Set by :meth:`average`.
        reduction: averages gradients. Set by :meth:`average`.
        wrapping: wraps the module by DDP. Set by :meth:`average`.
        elastic: see above.
        begun: whether :meth:`begin` has been called.
        closed: whether :meth:`close` has been called.
        accumulated_gradients: gradients of a resumed step by name, for the first step.
        synchroniser: synchronises the models at the end of each block. Set by :meth:`begin`, like
            all following attributes.
        state: state of this rank in a checkpoint.
        averages: averages of WeightAveraging callbacks.
        raw_steps: check that no step bypasses the strategy.

    """

    settings: Synchronisation
    reduction: Reduction
    wrapping: Wrapping
    synchroniser: BlockSynchroniser
    state: RunState
    averages: AveragedWeights
    raw_steps: RawSteps

    def __init__(
        self, trainer: pl.Trainer, groups: RankGroups, elastic: ElasticFit | None = None
    ) -> None:
        self.trainer, self._groups, self.elastic = trainer, groups, elastic
        self.communicators = groups.communicators
        self.worker = Worker()
        self.scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
        self.changes = TrainerChanges(trainer)
        self.position = DataPosition(self.changes, self.communicators.device)
        self.begun = self.closed = False
        self.accumulated_gradients: dict[str, Any] = {}

    def average(self, settings: Synchronisation, wrap: Wrap) -> None:
        """Set the synchronisation, without ``"auto"``, and how to wrap."""
        self.settings = settings
        module, channels = self.trainer.lightning_module, self.communicators
        config, memory = settings.gradient_sync, self.worker.memory
        self.reduction = Reduction(module, channels, config, memory, self.grad_scale)
        self.wrapping = Wrapping(channels, memory, config, self.reduction, wrap)

    def begin(
        self,
        optimizers: Sequence[Optimizer],
        metrics_callback: Callback,
        *,
        offload: bool = False,
    ) -> None:
        """Start counting steps and change the Trainer. A collective of the world.

        Args:
            optimizers: optimizers of the module; each has its own block.
            metrics_callback: logs metrics.
            offload: whether the state of outer steps lies in the memory of the host.

        """
        module = self.trainer.lightning_module
        prepare_loops(module.parameters())
        self.worker.count_optimizers(len(optimizers))
        self.synchroniser = BlockSynchroniser(
            module,
            optimizers,
            self.settings.block_sync,
            communicators=self.communicators,
            worker=self.worker,
            warmup_steps=int(self.settings.warmup_steps),
            nics=self._groups.fewest_nics(),
            offload=offload,
            membership=None if self.elastic is None else self.elastic.exchange,
        )
        self.synchroniser.on_warm = self.wrap  # from now on over the group
        self.state = RunState(self, optimizers)
        self._change_trainer(metrics_callback)
        self.begun = True

    def _change_trainer(self, metrics_callback: Callback) -> None:
        """Put callbacks around those of the user, and replace handlers of signals."""
        synchroniser, changes = self.synchroniser, self.changes
        termination = QuietTermination(changes, synchroniser.health)
        self.raw_steps = RawSteps(
            lambda: synchroniser.trained.parameters,
            lambda: synchroniser.evaluation.active or self.communicators.world.size == 1,
        )
        changes.on_close(self.raw_steps.remove)
        self.averages = AveragedWeights(self.trainer, self.communicators)
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

    @property
    def warming(self) -> bool:
        """Whether gradients are currently averaged over the world."""
        return self.synchroniser.warming if self.begun else int(self.settings.warmup_steps) > 0

    def wrap(self) -> None:
        """Wrap the module over the ranks that average gradients now. A collective of them."""
        self.wrapping.wrap(warming=self.warming)

    def wrap_if_changed(self) -> None:
        """Wrap the module again if these ranks, or the trainable parameters, have changed.

        DDP ignores parameters that were frozen when it was created.
        """
        present = parameters_of(self.trainer.lightning_module)
        if not self.wrapping.suits(present, warming=self.warming):
            self.wrap()

    def start(self) -> None:
        """Restore random states and gradients of a resumed run when training starts."""
        if self.accumulated_gradients:
            # Not earlier, because Lightning clears the gradients.
            self.state.set_gradients(self.accumulated_gradients)
            self.accumulated_gradients = {}
        self.position.start()

    def before_batch(self, batch: Any) -> None:
        """Count samples, and include parameters that were unfrozen, which is a collective."""
        sync, module = self.settings.block_sync, self.trainer.lightning_module
        # Not in a callback, because a search for the learning rate has only that of Lightning.
        if sync is not None and sync.weighting == "samples":
            self.worker.count_samples(batch_samples(module, batch))
        trained, reduced = self.synchroniser.trained, self.reduction.reduced
        present = parameters_of(module)
        trained.known.require_kept(present)
        if self.wrapping.temporary or not (present <= trained.parameters and present <= reduced):
            self.synchroniser.admit_trainable(present)
            self.wrap_if_changed()

    @contextmanager
    def step(self, optimizer: int) -> Iterator[None]:
        """Context of a step of an optimizer, which is counted afterwards.

        A collective of the group, and of the world at the end of a block.
        """
        self.synchroniser.before_step()
        blocks = self.synchroniser.blocks
        stepping = nullcontext() if blocks is None else blocks[optimizer].stepping()
        with self.raw_steps.counted(), stepping:
            yield
        self.synchroniser.after_step(optimizer)

    def warn_if_warming(self) -> None:
        """Warn of a run that has ended in its warm-up, in which the strategy saves no bytes."""
        warmup_steps = int(self.settings.warmup_steps)
        steps = max((count.total for count in self.worker.steps), default=0)
        if 0 < steps <= warmup_steps:
            rank_zero_warn(
                f"the run has ended after {steps} steps, within its warm-up of {warmup_steps}: it "
                "never synchronised a block and sent as many bytes as DDP. Pass a warmup_steps "
                "below the number of steps of the run; 0 disables the warm-up."
            )

    def rewind(self) -> None:
        """Reset the state of training before another one is loaded."""
        self.synchroniser.rewind()
        self.worker.memory.tensors.clear()
        self.position.rewind()

    def metrics(self) -> dict[str, float]:
        """Return metrics of gradients and blocks, by name."""
        if not self.begun:
            return {}
        return self.reduction.metrics() | self.synchroniser.log.metrics(self.worker.steps)

    def grad_scale(self) -> float:
        """Current factor of fp16 loss scaling, or 1."""
        return float(self.scaler.get_scale()) if self.scaler is not None else 1.0

    def close(self) -> None:
        """Undo changes to the Trainer, and remove hooks of parameters."""
        self.closed = True
        self.changes.close()
        if hasattr(self, "reduction"):  # otherwise the length of the run could not be determined
            self.reduction.close()
