"""Block synchronisation of the tensors of one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.bucket_settings import BucketSettings
from lightning_hier.comm.blocks.dtype_bucket import DtypeBucket
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.members import Members
from lightning_hier.comm.blocks.overlapped_bucket import OverlappedBucket
from lightning_hier.comm.blocks.restart import forget_state_
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.broadcast import broadcast_tensors_, by_dtype
from lightning_hier.comm.communicators import Communicators

# Agrees with all ranks before anything is sent, on whose models are averaged, from what this rank
# finds in its local model; raises on every rank what any rank objects to.
Agreement = Callable[[ModelHealth], Participation]

Counts = Mapping[Parameter, list[float]]


class ModelBlock:
    """Global model and update of one optimizer's tensors, and how they meet the local model.

    Knows tensors and an optimizer, not how gradients are made: it works on any module whose
    parameters are whole on every rank of a group. Methods are collectives of the world unless they
    say otherwise: every rank must call them at the same step.
    """

    def __init__(
        self,
        members: Members,
        optimizer: Optimizer,
        *,
        config: BlockSync,
        placement: ShardPlacement,
        communicators: Communicators,
        models: LocalModels,
    ) -> None:
        """Start from the present model, which must be the same on all ranks."""
        self._models = models
        self.members = members
        self._optimizer = optimizer
        self._config = config
        self._placement = placement
        self._communicators = communicators
        averaged_models = communicators.models
        # One model is not averaged with anything: its optimizer is left alone.
        self._local_state = (
            config.local_state(optimizer, members.parameters, communicators.across, averaged_models)
            if averaged_models > 1
            else LocalState()
        )
        filtered = by_dtype(members.parameters)
        averaged = by_dtype(members.float_buffers)
        carried = by_dtype(self._local_state.carried)
        settings = BucketSettings(
            local_state=self._local_state,
            block_filter=config.filter_for(averaged_models),
            placement=placement,
            route=communicators.route,
            # Nor is it sent anywhere, so nothing shortens it.
            across_dtype=config.across_dtype if averaged_models > 1 else "same",
            models=models,
            block_size=config.steps,
        )
        kind = OverlappedBucket if config.overlap and averaged_models > 1 else DtypeBucket
        self._parts = [
            kind(filtered.get(dtype, []), averaged.get(dtype, []), carried.get(dtype, []), settings)
            for dtype in sorted({*filtered, *averaged, *carried}, key=str)
        ]

    @property
    def optimizer_tensors(self) -> list[Tensor]:
        """State of the local optimizer that travels with the model."""
        return list(self._local_state.carried)

    @property
    def counts(self) -> dict[Parameter, list[float]]:
        """What is counted for each parameter beside the steps."""
        return self._local_state.counts()

    def state(self) -> list[dict[str, Any]]:
        """This rank's share of W and Delta, for each dtype; the tensors are not copied."""
        return [part.state() for part in self._parts]

    def load(self, parts: Sequence[Mapping[str, Any]], counts: Counts) -> None:
        """Go on in the middle of a block of the same groups. Communicates nothing."""
        for part, state in zip(self._parts, parts, strict=True):
            part.load(state)
        self._local_state.set_counts(counts)

    def load_local(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Go on with another local model of this rank, which is in the module."""
        for part, state in zip(self._parts, parts, strict=True):
            part.load_local(state)

    @torch.no_grad()
    def restart(self, models: Sequence[tuple[Tensor, Tensor]], counts: Counts) -> None:
        """Begin a block where a run of other groups has left off; the tensors become its start.

        A collective of the group.

        Args:
            models: W and Delta, whole and flat, for each dtype in the order of :meth:`state`.
            counts: as by ``counts``; those of the steps begin anew.

        """
        for part, (global_model, update) in zip(self._parts, models, strict=True):
            part.restart_(global_model, update)
        self._local_state.go_on(counts)

    def stepping(self) -> AbstractContextManager[None]:
        """What surrounds each step of the optimizer. Communicates nothing."""
        return self._config.stepping(self._optimizer, self._communicators.models)

    def synchronise(self, agree: Agreement) -> BlockReport:
        """Average the models of all groups and start the next block from the result, in place.

        Parameters become W_g(t), floating-point buffers their mean, other buffers those of the
        first healthy group; the state of the local optimizer becomes what the settings say. A group
        that is left out of the mean gets the same, and fresh state where none is carried.
        """
        self._unite_buffers()
        participation = agree(self._gather())
        first = self._keep_local_updates()
        self._local_state.collect(participation)
        found = [part.synchronise_(participation) for part in self._parts]
        for part in self._parts:
            part.send_off(participation)
        for tensor, value in zip(self.members.other_buffers, first, strict=True):
            tensor.copy_(value)
        self._equalise_other_buffers(participation)
        self._hand_to_others()
        for _ in self._models.each():
            if not participation.takes_part:
                forget_state_(self._optimizer, self.members.parameters, self._local_state.carried)
            self._local_state.finish()
        return BlockReport.of(found, participation, self._communicators)

    def look(self, agree: Agreement, *, pending: bool) -> Participation:
        """Write the global model W into the tensors, in place; W and Delta stay as they are.

        Args:
            agree: as in :meth:`synchronise`; what it returns is returned.
            pending: whether steps were taken since the last synchronisation. W is then what it
                would become if the block ended here.

        """
        # Buffers move with every forward pass, be it one of a step or not: they are always pending.
        self._unite_buffers()
        participation = agree(self._gather())
        for part in self._parts:
            part.look_(participation, pending=pending)
        self._equalise_other_buffers(participation)
        return participation

    @torch.no_grad()
    def regrown(self, members: Members) -> ModelBlock:
        """The same block with more members, whose present values are their global ones.

        The state is handed over through the tensors themselves: W, and into the optimizer's state
        what it was when the block began, are written and read by the new block, then Delta and its
        like; at last they get their local values back. ErrorFeedback of short forms are given up. A
        collective of the group.

        Raises:
            ValueError: this rank has several local models.

        """
        if self._models.number > 1:
            raise ValueError(
                f"virtual_workers={self._models.number} can't be combined with unfreezing "
                "parameters while training: have them trainable from the start, or start a rank "
                "for each worker"
            )
        saved = [(t, t.detach().clone()) for t in [*members.tensors, *self.optimizer_tensors]]
        self._communicators.route.in_flight.finish()
        for part in self._parts:
            part.recall_()
        block = ModelBlock(
            members,
            self._optimizer,
            config=self._config,
            placement=self._placement,
            communicators=self._communicators,
            models=self._models,
        )
        block._local_state.inherit(self._local_state)
        for name in self._parts[0].vectors() if self._parts else ():
            for parameter in members.parameters:
                parameter.zero_()
            for part in self._parts:
                part.show_(name)
            for part in block._parts:
                part.adopt_(name)
        older = {part.dtype: part for part in self._parts}
        for part in block._parts:
            if part.dtype in older:
                part.follow(older[part.dtype])
        for tensor, local in saved:
            tensor.copy_(local)
        return block

    def _gather(self) -> ModelHealth:
        """Put this rank's share into the transfer buffers; tell how the whole model is."""
        reading = ModelHealth()
        for turn, _ in enumerate(self._models.each()):
            reading = sum((part.gather(add=turn > 0) for part in self._parts), reading)
            self._local_state.note(first=turn == 0)
        if not all(part.carries_all for part in self._parts):
            # What another rank carries is overwritten, but what this one has made of it is not.
            own = self.members
            reading += ModelHealth.of_tensors(
                own.parameters, own.float_buffers, self.optimizer_tensors
            )
        return reading

    def _keep_local_updates(self) -> list[Tensor]:
        """Have parts keep what each local model has made; the other buffers of the first one."""
        first: list[Tensor] = []
        for turn, _ in enumerate(self._models.each()):
            if turn == 0:
                first = [tensor.clone() for tensor in self.members.other_buffers]
            for part in self._parts:
                part.keep_local_update_()
        return first

    def _hand_to_others(self) -> None:
        """Give the other local models of this rank what the one in the module has got."""
        equal = [(tensor, tensor.data) for tensor in self.members.other_buffers]
        for _ in self._models.others():
            for part in self._parts:
                part.write_()
            for tensor, value in equal:
                tensor.copy_(value)

    def _unite_buffers(self) -> None:
        """Give a group its first rank's buffers, as DDP does before every forward pass."""
        broadcast_tensors_(self.members.float_buffers, self._communicators.group, "buffers")

    def _equalise_other_buffers(self, participation: Participation) -> None:
        """Give all ranks those of the first healthy group's first rank."""
        world = self._communicators.world
        source = self._communicators.layout.rank((0, participation.first))
        broadcast_tensors_(self.members.other_buffers, world, "buffers", source=source)
