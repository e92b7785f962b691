"""When models are synchronised: counts steps, ends blocks, shows the global model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.agreed_parameters import AgreedParameters
from lightning_hier.comm.blocks.block_log import BlockLog
from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.health import OnNonfinite
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.health_report import SyncPoint
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.local_values import LocalValues
from lightning_hier.comm.blocks.model_block import Agreement, ModelBlock
from lightning_hier.comm.blocks.one_model import OneModel
from lightning_hier.comm.blocks.shard_placement import ShardPlacement, make_placement
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.broadcast import average_tensors_
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import Worker

# Steps between two checks of all ranks where blocks have not begun or there are none.
_CHECK_EVERY = 50


class BlockSynchroniser:
    """Runs the blocks of all optimizers of one rank.

    A step is one call of ``optimizer_step`` of one optimizer. Every rank counts calls, not updates,
    so a step that loss scaling skips on one rank does not put ranks out of step.

    Args:
        module: the model. Only its trainable parameters and its buffers are used.
        optimizers: each has its own block.
        config: when and how; None synchronises no models, but still checks that all ranks are in
            step.
        communicators: channels of this rank.
        worker: counts of the worker that this rank plays.
        models: local models that this rank trains in turns; None is one.
        warmup_steps: steps before the first block, in which gradients are averaged over the world.
        nics: as in :func:`~lightning_hier.comm.blocks.shard_placement.make_placement`.
        on_nonfinite: what becomes of groups whose models are not finite.

    Attributes:
        log: what the synchronisations of each optimizer's block have to log.
        on_warm: called when the warm-up ends.
        on_block: called after each synchronisation at a block's end, with its report.
        trained: which tensors are synchronised.
        local: values of this rank's local model.
        health: what this rank tells the others at synchronisations, and learns from them.

    Raises:
        ValueError: the settings do not suit the number of groups.

    """

    def __init__(
        self,
        module: Module,
        optimizers: Sequence[Optimizer],
        config: BlockSync | None,
        *,
        communicators: Communicators,
        worker: Worker,
        models: LocalModels | None = None,
        warmup_steps: int = 0,
        nics: int | None = None,
        on_nonfinite: OnNonfinite = "error",
    ) -> None:
        self._optimizers = list(optimizers)
        self._config = config
        self._communicators = communicators
        self._worker = worker
        self._models = models or LocalModels(module, optimizers)
        self._buffers = self._models.buffers
        self.trained = TrainedTensors(module, self._optimizers, self._buffers)
        self._warmup_steps = warmup_steps
        self.placement: ShardPlacement = make_placement(
            config.across if config else "auto", communicators.group, nics=nics
        )
        self._blocks: list[ModelBlock] | None = None
        self.local = LocalValues(self.trained, self._models)
        self._saved = self.local.saved
        self.log = BlockLog(len(self._optimizers))
        self._finished = False
        self._settled = False
        self._agreed = agreed = AgreedParameters(module, self.trained, optimizers, communicators)
        self.health = HealthExchange(communicators, worker, on_nonfinite, self._buffers, agreed)
        self._one_model = OneModel(module, self.trained, self.health, communicators)
        self.on_warm: Callable[[], None] = lambda: None
        self.on_block: Callable[[BlockReport], None] = lambda report: None

    @property
    def warming(self) -> bool:
        """Whether some optimizer has not yet taken its warm-up steps."""
        return any(count.total < self._warmup_steps for count in self._worker.steps)

    @property
    def shown(self) -> bool:
        """Whether the module holds the global model, its local one put aside."""
        return self._saved.used

    @property
    def blocks(self) -> Sequence[ModelBlock] | None:
        """One for each optimizer; None before the first step after the warm-up."""
        return self._blocks

    def open_blocks(self, trainable: Collection[Parameter]) -> Sequence[ModelBlock]:
        """Begin blocks with the present model and what has been ``trainable`` until now."""
        self.trained.parameters |= set(trainable)
        self._blocks = self._new_blocks()
        return self._blocks or ()

    def rewind(self) -> None:
        """Forget blocks and looks, before a state is loaded that is older than the present one."""
        self._communicators.route.in_flight.finish()
        self._blocks = None
        self._models.forget()
        self._saved.forget()
        self._finished = self._settled = False
        self.log.reports.clear()

    def admit_trainable(self) -> None:
        """Take in parameters that have been unfrozen since the last call.

        A parameter that has been trainable once stays in the global model. A collective of the
        ranks that average gradients, as long as some parameters have never been trainable.
        Different ones are an error on every rank.
        """
        channel = self._communicators.world if self.warming else self._communicators.group
        new, agreed = self._agreed.admit(channel)
        if not agreed:
            # The ranks of other groups raise it at their next health report.
            self.health.compare(SyncPoint.CHECK)
        if new and self._blocks is not None:
            self._buffers.reclaim()
            self._blocks = [
                block if len(own.tensors) == len(block.members.tensors) else block.regrown(own)
                for block, own in zip(self._blocks, self.trained.members(), strict=True)
            ]

    def before_step(self) -> None:
        """Prepare for a step of any optimizer. The first one after the warm-up opens the blocks."""
        self.health.out_after = -1
        self._open_blocks()

    def after_step(self, optimizer: int) -> None:
        """Count a step, and end the block if it was the last of it.

        A collective of the world at the end of a block, and of nobody before; in the warm-up
        ranks meet anyway, and check from time to time that they are in step. After
        :meth:`settle` a step has no gradients and does not count.
        """
        if self._settled:
            return
        count = self._worker.steps[optimizer]
        was_warming = self.warming
        count.total += 1
        if was_warming:
            if not self.warming:
                self._end_warm_up()
            elif count.total % _CHECK_EVERY == 0:
                with self._communicators.progress.at(SyncPoint.CHECK.text):
                    self._one_model.check(SyncPoint.CHECK, optimizer)
            return
        count.in_block += 1
        self._communicators.route.in_flight.step()
        # More than a block, where a run goes on with a smaller block_size.
        if count.in_block >= (self._config.steps if self._config else _CHECK_EVERY):
            place = SyncPoint.CHECK if self._blocks is None else SyncPoint.BLOCK
            with self._communicators.progress.at(place.text):
                self.end_block(optimizer)

    def show(self) -> None:
        """Put the local model aside and write the global model into the module, in place.

        A collective of the world. Does nothing where the global model is already shown, and after
        :meth:`finish`; after :meth:`settle` it averages the buffers.
        """
        self._buffers.reclaim()
        if self._settled:
            with self._communicators.progress.at(SyncPoint.EVALUATION.text):
                average_tensors_(self._buffers.tensors, self._communicators.world, "buffers")
        elif not self.shown:
            self._look(SyncPoint.EVALUATION)

    def hide(self) -> None:
        """Put the local model back, bit for bit. Does nothing where it is in the module already.

        Buffers keep what hooks have written.

        Raises:
            RuntimeError: a hook has written into a trained parameter.

        """
        if not self.shown or self._finished or self._settled:
            return
        self.local.keep_written_buffers()
        self._saved.restore()

    def finish(self) -> None:
        """End the last, short blocks and leave the global model. A collective of the world.

        The local model stays aside, for a checkpoint that is saved after training.
        """
        if self._settled:
            self.show()
            return
        self.hide()
        self._look(SyncPoint.TRAINING_END)
        self._finished = True

    def settle(self) -> None:
        """Leave the module as somebody else has put it; only BatchNorm's buffers still move."""
        self._saved.keep_all()
        self._settled = True

    @torch.inference_mode(False)  # optimizer state that is made here is trained with later
    def _look(self, place: SyncPoint) -> None:
        """Put aside what a look changes, and write the global model. A collective of the world."""
        self._buffers.reclaim()
        # Between the warm-up and the first step, what the blocks would be.
        new = self._blocks is None and not self.warming
        blocks = self._new_blocks() if new else self._blocks
        own = [tensor for block in blocks or [] for tensor in block.members.tensors]
        # After the end of training hooks may write whatever they like.
        saved = self._saved.overwriting(
            own or self._buffers.tensors, watch=place != SyncPoint.TRAINING_END
        )
        at = self._communicators.progress.at(self.health.said(place))
        with saved, self._models.opened(needed=bool(blocks)), at, torch.no_grad():
            # A rank that comes here alone learns so below: the steps of others wait for its part.
            self._communicators.route.in_flight.finish()
            if not blocks:
                self._one_model.unite_buffers_(place)
            for index, block in enumerate(blocks or []):
                count = self._worker.steps[index]
                participation = block.look(
                    self._agreement(place, index), pending=count.in_block > 0
                )
                if place == SyncPoint.TRAINING_END and count.in_block:
                    self.log.excluded_at_end[index] = len(participation.excluded)

    def _new_blocks(self) -> list[ModelBlock] | None:
        self._buffers.reclaim()
        self._agreed.note()
        if self._config is None:
            return None
        make = partial(
            ModelBlock, config=self._config, placement=self.placement, models=self._models
        )
        pairs = zip(self.trained.members(), self._optimizers, strict=True)
        return [make(*pair, communicators=self._communicators) for pair in pairs]

    def _end_warm_up(self) -> None:
        """Make the groups' models equal to the last bit, buffers included, and begin blocks."""
        with self._communicators.progress.at("the end of the warm-up"), torch.no_grad():
            carried = [t for block in self._new_blocks() or [] for t in block.optimizer_tensors]
            self._one_model.unite_(carried)
        self.on_warm()

    def _open_blocks(self) -> None:
        if not self.warming:
            self._blocks = self._blocks or self._new_blocks()
            self._models.open()

    @torch.no_grad()
    def end_block(self, optimizer: int) -> None:
        """Synchronise the models, or check that all ranks are in step. A collective of the world.

        The roll call must have been told where this rank is.
        """
        self._open_blocks()
        self._buffers.reclaim()
        count = self._worker.steps[optimizer]
        count.in_block = 0
        if self._blocks is None:
            self._one_model.check(SyncPoint.CHECK, optimizer)
            return
        count.blocks += 1
        block = self._blocks[optimizer]
        report = block.synchronise(self._agreement(SyncPoint.BLOCK, optimizer))
        count.excluded += report.excluded
        if report.restarted:
            self._worker.memory.forget(block.members.parameters)
        self.log.reports[optimizer] = report
        self.on_block(report)

    def _agreement(self, place: SyncPoint, optimizer: int) -> Agreement:
        return lambda reading: self.health.judge(place, optimizer, reading)
