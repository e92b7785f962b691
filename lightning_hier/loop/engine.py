"""The engine: averages the gradients of one rank, and synchronises its models in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.algorithms.kernels.native import prepare_loops
from lightning_hier.comm.blocks.block_context import Membership
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.reduction import Reduction
from lightning_hier.comm.worker import Worker
from lightning_hier.loop.settings import Synchronisation


class Engine:
    """What every door enters: :class:`~lightning_hier.Blocks` of a plain loop, and a Trainer's fit.

    A collective of the world: every rank must create it, with equal settings.

    Args:
        module: module inside all wrappers.
        optimizers: optimizers of the module, which are never wrapped or replaced. Each has its own
            block.
        settings: synchronisation, with numbers instead of ``"auto"``.
        communicators: channels of this rank.
        grad_scale: returns the current factor of loss scaling.
        nics: as in :func:`~lightning_hier.comm.blocks.shard_placement.placement_of`.
        offload: whether the state of outer steps lies in the memory of the host.
        membership: finds the groups that are present, if groups come and go.

    Attributes:
        worker: residuals and step counts of this rank.
        counts_samples: whether groups count by the samples of their block.
        reduction: averages gradients. Attach it to the wrapped module.
        synchroniser: synchronises the models at the end of each block.

    """

    def __init__(
        self,
        module: Module,
        optimizers: Sequence[Optimizer],
        settings: Synchronisation,
        *,
        communicators: Communicators,
        grad_scale: Callable[[], float],
        nics: int | None = None,
        offload: bool = False,
        membership: Membership | None = None,
    ) -> None:
        self.module = module
        self.optimizers = list(optimizers)
        self.settings = settings
        sync = settings.block_sync
        self.counts_samples = sync is not None and sync.weighting == "samples"
        self.communicators = communicators
        prepare_loops(module.parameters())
        self.worker = Worker()
        self.worker.count_optimizers(len(self.optimizers))
        self.reduction = Reduction(
            module, communicators, settings.gradient_sync, self.worker.memory, grad_scale
        )
        self.synchroniser = BlockSynchroniser(
            module,
            self.optimizers,
            settings.block_sync,
            communicators=communicators,
            worker=self.worker,
            warmup_steps=int(settings.warmup_steps),
            nics=nics,
            offload=offload,
            membership=membership,
        )

    @property
    def warm_up_has_ended(self) -> bool:
        """Whether gradients are averaged over the world, and from the next step over the group."""
        return self.reduction.warming and not self.synchroniser.warming

    def stepping(self, optimizer: int) -> AbstractContextManager[None]:
        """Begin a step of an optimizer. Returns the context of its update."""
        self.synchroniser.before_step()
        blocks = self.synchroniser.blocks
        return nullcontext() if blocks is None else blocks[optimizer].stepping()

    def metrics(self) -> dict[str, float]:
        """Metrics of gradients and blocks by name. Does not communicate."""
        return self.reduction.metrics() | self.synchroniser.log.metrics(self.worker.steps)
