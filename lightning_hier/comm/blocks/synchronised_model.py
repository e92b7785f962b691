"""The tensors of a module that ranks synchronise, in a block for each optimizer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_context import BlockContext, Membership
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.health import SyncPoint
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.local_values import LocalValues
from lightning_hier.comm.blocks.model_block import ModelBlock
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.blocks.shard_placement import placement_of
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.worker import Worker


class SynchronisedModel:
    """What the ranks synchronise, in its current state.

    Args:
        module: model. Only its trainable parameters and its buffers are used.
        optimizers: optimizers of the module. Each has its own block.
        config: settings. None: models are not synchronised, but ranks are checked to be in step.
        communicators: channels of this rank.
        worker: step counts of this rank.
        warmup_steps: steps before the first block, in which gradients are averaged over the world.
        nics: as in :func:`~lightning_hier.comm.blocks.shard_placement.placement_of`.
        offload: whether the state of outer steps lies in the memory of the host.
        membership: finds the groups that are present, if groups come and go.

    Attributes:
        module: see above.
        communicators: see above.
        worker: see above.
        placement: division of the model among the ranks of a group.
        blocks: one block for each optimizer. None before the first step after the warm-up.
        buffers: buffers of the module.
        trained: tensors that are synchronised.
        local: values of this rank's local model.
        health: exchange of health reports before every synchronisation.

    Raises:
        ValueError: the settings do not support the number of groups.

    """

    def __init__(
        self,
        module: Module,
        optimizers: Sequence[Optimizer],
        config: BlockSync | None,
        *,
        communicators: Communicators,
        worker: Worker,
        warmup_steps: int = 0,
        nics: int | None = None,
        offload: bool = False,
        membership: Membership | None = None,
    ) -> None:
        self.module = module
        self.communicators = communicators
        self.worker = worker
        self._warmup_steps = warmup_steps
        across = config.across if config else "auto"
        self.placement = placement_of(module, across, communicators.group, nics=nics)
        common = self.placement, communicators, offload, membership
        self._contexts = [BlockContext(o, config, *common) for o in optimizers] if config else []
        self.blocks: list[ModelBlock] | None = None
        self.buffers = ModuleBuffers(module)
        self.trained = TrainedTensors(module, list(optimizers), self.buffers)
        self.local = LocalValues(self.trained, self.buffers)
        # Of every fragment, and of the buffers.
        counted = config.fragments + 1 if config and config.weighting == "samples" else 0
        self.health = HealthExchange(
            communicators,
            worker,
            self.trained,
            counted=counted,
            independent=membership is not None,
        )

    @property
    def warming(self) -> bool:
        """Whether any optimizer is in its warm-up."""
        return any(count.total < self._warmup_steps for count in self.worker.steps)

    def before_step(self) -> None:
        """Prepare a step of any optimizer. The first one after the warm-up starts the blocks."""
        if self.blocks is None and not self.warming:
            self.blocks = self.new_blocks()

    def new_blocks(self) -> list[ModelBlock] | None:
        """Blocks that start with the current model. None if models are not synchronised.

        A collective of the group.
        """
        if not self._contexts:
            return None
        self.buffers.reclaim()
        return [*map(ModelBlock, self.trained.members(), self._contexts)]

    def present_blocks(self) -> Sequence[ModelBlock]:
        """The blocks or, before the first step after the warm-up, those that it will start.

        A collective of the group. Without a synchronisation of models, there are none.
        """
        return self.blocks or self.new_blocks() or ()

    def open_blocks(self, trainable: Collection[Parameter]) -> Sequence[ModelBlock]:
        """Start blocks with the current model, whose ``trainable`` were trained in an older run."""
        self.trained.parameters |= set(trainable)
        self.blocks = self.new_blocks()
        return self.blocks or ()

    def admit_found(self) -> Sequence[Tensor]:
        """Synchronise from now on what ranks have found in an exchange. Returns these tensors.

        A collective of the group if there are any, at the same step on all ranks.
        """
        found = self.trained.admit_found()
        if found:
            self._regrow()
        return found

    def admit_trainable(self, present: set[Parameter]) -> None:
        """Add those of the module's parameters ``present`` that were unfrozen since the last call.

        A parameter that was trainable once stays in the global model. It is a collective of the
        ranks that average gradients, as long as some parameters have never been trainable. If ranks
        have different parameters, they raise an error, and other groups at the next health report.
        """
        if present <= self.trained.parameters:
            return
        new = self.trained.admit(present)
        channel = self.communicators.world if self.warming else self.communicators.group
        if not self.health.same_parameters_in(channel):
            self.health.check_in_step(SyncPoint.CHECK)
        if new:
            self._regrow()

    def _regrow(self) -> None:
        """Give the blocks the tensors that have been added. A collective of the group."""
        if self.blocks is not None:
            self.buffers.reclaim()
            grown = zip(self.blocks, self.trained.members(), strict=True)
            self.blocks = [block.regrown(members) for block, members in grown]

    def forget_errors(self) -> None:
        """Discard residuals and error feedback, those of another group whose state was loaded."""
        self.worker.memory.write_shared()
        self.worker.memory.clear()
        for block in self.blocks or ():
            block.forget_errors()
