"""Block synchronisation of the tensors of one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.comm.blocks.block_sync import LocalMomentum
from lightning_hier.comm.blocks.carriers import Carrier
from lightning_hier.comm.blocks.members import Members, momentum_buffers, reset_momentum_
from lightning_hier.comm.blocks.model_part import ModelPart
from lightning_hier.comm.broadcast import broadcast_tensors_, by_dtype
from lightning_hier.comm.communicators import Communicators


@dataclass(frozen=True)
class BlockReport:
    """What one synchronisation did.

    Attributes:
        update_norm: Euclidean norm of the global update Delta.
        model_distance: how far the group models were apart: the root mean square over the groups
            of the Euclidean distance between a group's model and their mean. Averaged buffers and
            averaged momentum count as part of the model.

    """

    update_norm: float
    model_distance: float


# Agrees with all ranks before anything is sent: takes the sum of squares of this rank's share of
# the local model, returns the sum over all ranks; raises on every rank what any rank objects to.
Agreement = Callable[[float], float]


class ModelBlock:
    """Global model and update of one optimizer's tensors, and how they meet the local model.

    Knows tensors and an optimizer, not how gradients are made: it works on any module whose
    parameters are whole on every rank of a group.

    All methods but the constructor are collectives of the world: every rank must call them at the
    same step.
    """

    def __init__(
        self,
        members: Members,
        optimizer: Optimizer,
        *,
        block_filter: BlockFilter,
        local_momentum: LocalMomentum,
        carrier: Carrier,
        communicators: Communicators,
    ) -> None:
        """Start from the present model, which must be the same on all ranks."""
        self.members = members
        self._optimizer = optimizer
        self._block_filter = block_filter
        self._local_momentum = local_momentum
        self._carrier = carrier
        self._communicators = communicators
        self._momenta = (
            momentum_buffers(optimizer, members.parameters) if local_momentum == "average" else []
        )
        averaged = by_dtype([*members.float_buffers, *self._momenta])
        filtered = by_dtype(members.parameters)
        self._parts = [
            ModelPart(
                filtered.get(dtype, []),
                averaged.get(dtype, []),
                block_filter=block_filter,
                carrier=carrier,
                across=communicators.across,
            )
            for dtype in sorted({*filtered, *averaged}, key=str)
        ]

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor that this block writes."""
        return [*self.members.tensors, *self._momenta]

    def synchronise(self, agree: Agreement) -> BlockReport:
        """Average the models of all groups and start the next block from the result, in place.

        Parameters become W_g(t), floating-point buffers their mean, other buffers those of the
        first group; local momentum follows ``local_momentum``.
        """
        self._unite_buffers()
        local = agree(sum(part.gather() for part in self._parts))
        mean = sum(part.average_() for part in self._parts)
        update = sum(part.advance_() for part in self._parts)
        for part in self._parts:
            part.spread_()
        self._equalise_other_buffers()
        if self._local_momentum == "reset" and self._communicators.across.size > 1:
            reset_momentum_(self._optimizer)
        return self._report(local, mean, update)

    def look(self, agree: Agreement, *, pending: bool) -> None:
        """Write the global model W into the tensors, in place; W and Delta stay as they are.

        Args:
            agree: as in :meth:`synchronise`.
            pending: whether steps were taken since the last synchronisation. W is then what it
                would become if the block ended here.

        """
        # Buffers move with every forward pass, be it one of a step or not: they are always pending.
        self._unite_buffers()
        agree(sum(part.gather() for part in self._parts))
        for part in self._parts:
            if pending:
                part.average_()
                part.look_()
            else:
                part.average_(filtered=False)
                part.recall_()
        for part in self._parts:
            part.spread_()
        self._equalise_other_buffers()

    @torch.no_grad()
    def regrown(self, members: Members) -> ModelBlock:
        """The same block with more members, whose present values are their global ones.

        The state is handed over through the tensors themselves: W is written into them and read by
        the new block, then Delta likewise, and at last they get their local values back. A
        collective of the group.
        """
        saved = [(t, t.detach().clone()) for t in [*members.tensors, *self._momenta]]
        for part in self._parts:
            part.gather()
            part.recall_()
            part.spread_()
        block = ModelBlock(
            members,
            self._optimizer,
            block_filter=self._block_filter,
            local_momentum=self._local_momentum,
            carrier=self._carrier,
            communicators=self._communicators,
        )
        for parameter in members.parameters:
            parameter.zero_()
        for part in self._parts:
            part.gather()
            part.recall_update_()
            part.spread_()
        for part in block._parts:
            part.adopt_update()
        for tensor, local in saved:
            tensor.copy_(local)
        return block

    def _unite_buffers(self) -> None:
        """Give a group its first rank's buffers, as DDP does before every forward pass."""
        broadcast_tensors_(self.members.float_buffers, self._communicators.group, "buffers")

    def _equalise_other_buffers(self) -> None:
        broadcast_tensors_(self.members.other_buffers, self._communicators.world, "buffers")

    def _report(self, local: float, mean: float, update: float) -> BlockReport:
        sums = torch.tensor([mean, update], dtype=torch.float64, device=self._communicators.device)
        self._communicators.group.all_reduce_(sums, "status").wait()
        mean, update = sums.tolist()
        apart = local / self._communicators.across.size - mean
        return BlockReport(update_norm=update**0.5, model_distance=max(apart, 0.0) ** 0.5)
