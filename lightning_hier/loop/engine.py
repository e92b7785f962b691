"""The engine: averages the gradients of one rank, and synchronises its models in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from torch.nn import Module
from torch.optim import Optimizer

from lightning_hier.algorithms.kernels.native import prepare_loops
from lightning_hier.comm.blocks.block_context import Membership
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.comm.gradients.reduction import Reduction
from lightning_hier.comm.gradients.update_exchange import UpdateExchange
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
        grad_scale: returns the current factor of loss scaling.
        communicators, nics, offload, membership: as of the :class:`BlockSynchroniser`.

    Attributes:
        worker: residuals and step counts of this rank.
        counts_samples: whether groups count by the samples of their block.
        reduction: averages gradients, before the optimizer. Attach it to the wrapped module.
        updates: exchanges updates, behind the optimizer, or None.
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
        gradient_sync = settings.gradient_sync.suited(self.optimizers)
        self.settings = settings = replace(settings, gradient_sync=gradient_sync)
        sync = settings.block_sync
        self.counts_samples = sync is not None and sync.weighting == "samples"
        self.communicators = communicators
        prepare_loops(module.parameters())
        self.worker = Worker()
        self.worker.count_optimizers(len(self.optimizers))
        self.reduction = Reduction(
            module, communicators, gradient_sync, self.worker.memory, grad_scale
        )
        self.updates: UpdateExchange | None = None
        if isinstance(gradient_sync, GTC) and gradient_sync.of == "update":
            group, memory = communicators.group, self.worker.memory
            self.updates = UpdateExchange(group, gradient_sync, memory, self.optimizers)
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

    def problem_at_end(self) -> str | None:
        """Message about a run that ends in its warm-up, in which it saves no bytes, or None."""
        warmup_steps = int(self.settings.warmup_steps)
        totals = [count.total for count in self.worker.steps]
        # Blocks start behind the warm-up of the optimizer with the fewest steps.
        if not any(totals) or not (self.synchroniser.warming or max(totals) <= warmup_steps):
            return None
        fewest = f" of optimizer {totals.index(min(totals))}" if len({*totals}) > 1 else ""
        return (
            f"the run has ended after {min(totals)} steps{fewest}, within its warm-up of "
            f"{warmup_steps}: it never synchronised a block and sent as many bytes as DDP. Pass a "
            "warmup_steps below the number of steps of the run; 0 disables the warm-up."
        )

    def stepping(self, optimizer: int) -> AbstractContextManager[None]:
        """Context of a step of an optimizer: its gradients have been averaged in the group."""
        synchroniser, updates = self.synchroniser, self.updates
        self.reduction.require_averaged()
        synchroniser.before_step()
        blocks = synchroniser.blocks
        in_block = nullcontext() if blocks is None else blocks[optimizer].stepping()
        if updates is None or synchroniser.warming:
            return in_block
        return _both(in_block, updates.stepping(optimizer))

    def after_step(self, optimizer: int) -> None:
        """Behind a step: exchange its update in the group, count it, and end what is due.

        Every rank must call it, also one whose step was skipped. A collective of the group with GTC
        of updates, and of the world at the end of a block.
        """
        self.exchange(optimizer)
        self.synchroniser.after_step(optimizer)

    def exchange(self, optimizer: int) -> None:
        """Exchange the update of a step, with GTC of updates. A collective of the group then."""
        self.reduction.require_same_order()
        if self.updates is not None and not self.synchroniser.warming:
            self.updates.exchange(optimizer)

    def metrics(self) -> dict[str, float]:
        """Metrics of gradients and blocks by name. Does not communicate."""
        of_updates = {} if self.updates is None else self.updates.metrics()
        of_blocks = self.synchroniser.metrics()
        return self.reduction.metrics() | of_updates | of_blocks


@contextmanager
def _both(
    in_block: AbstractContextManager[None], of_update: AbstractContextManager[None]
) -> Iterator[None]:
    # The latter inside, because it reads the learning rate of the step.
    with in_block, of_update:
        yield
