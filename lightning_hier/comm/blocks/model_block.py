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
from lightning_hier.comm.blocks.bucket_mean import BucketSettings
from lightning_hier.comm.blocks.dtype_bucket import DtypeBucket
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.local_state import LocalState, forget_state_
from lightning_hier.comm.blocks.overlapped_bucket import OverlappedBucket
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.broadcast import broadcast_tensors_, by_dtype
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.profiling import profiler_range

Agree = Callable[[ModelHealth], Participation]
"""Exchanges the model's health with all ranks; raises the same error on every rank."""

Counts = Mapping[Parameter, list[float]]


class ModelBlock:
    """Global model and update of one optimizer's tensors.

    The parameters must be whole on every rank of a group. Methods are collectives of the world
    unless they say otherwise: every rank must call them at the same step.

    Args:
        members: tensors of the block; their present values, the same on all ranks, start it.
        optimizer: of these tensors.
        config: settings of block synchronisation.
        placement: division of the model among the ranks of a group.
        communicators: channels of this rank.
        models: local models of this rank.

    Attributes:
        members: see above.
        local_state: of the optimizer, averaged with the model where the settings say so.

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
        self._models = models
        self.members = members
        self._optimizer = optimizer
        self._config = config
        self._placement = placement
        self._communicators = communicators
        number = communicators.models
        # A single model is not averaged: its optimizer stays as it is and nothing is quantised.
        self.local_state = (
            config.local_state(optimizer, members.parameters, communicators.across, number)
            if number > 1
            else LocalState()
        )
        settings = BucketSettings(
            local_state=self.local_state,
            block_filter=config.filter_for(number),
            placement=placement,
            route=communicators.route,
            across_dtype=config.across_dtype if number > 1 else "same",
            models=models,
            block_size=config.steps,
        )
        filtered, averaged = by_dtype(members.parameters), by_dtype(members.float_buffers)
        carried = by_dtype(self.local_state.carried)
        bucket = OverlappedBucket if config.overlap and number > 1 else DtypeBucket
        self._buckets = [
            bucket(filtered.get(own, []), averaged.get(own, []), carried.get(own, []), settings)
            for own in sorted({*filtered, *averaged, *carried}, key=str)
        ]

    def state(self) -> list[dict[str, Any]]:
        """This rank's shard of W and Delta for each dtype; the tensors are not copied."""
        return [bucket.state() for bucket in self._buckets]

    def load(self, states: Sequence[Mapping[str, Any]], counts: Counts) -> None:
        """Continue in the middle of a block of the same groups."""
        for bucket, state in zip(self._buckets, states, strict=True):
            bucket.load(state)
        self.local_state.set_counts(counts)

    def load_local(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Load the state of another local model of this rank, which is in the module."""
        for bucket, state in zip(self._buckets, states, strict=True):
            bucket.load_local(state)

    @torch.no_grad()
    def restart(self, models: Sequence[tuple[Tensor, Tensor]], counts: Counts) -> None:
        """Begin a block from a run of other groups; the tensors become its start model.

        A collective of the group.

        Args:
            models: W and Delta, whole and flat, for each dtype in the order of :meth:`state`.
            counts: of the local state.

        """
        for bucket, (global_model, update) in zip(self._buckets, models, strict=True):
            bucket.restart_(global_model, update)
        self.local_state.go_on(counts)

    def stepping(self) -> AbstractContextManager[None]:
        """Context of each step of the optimizer. Communicates nothing."""
        return self._config.stepping(self._optimizer, self._communicators.models)

    def synchronise(self, agree: Agree) -> BlockReport:
        """Average the models of all groups and start the next block from the result, in place.

        Parameters become W_g(t), floating-point buffers their mean, other buffers those of the
        first healthy group. A group that is left out gets the same, and fresh optimizer state.
        """
        # As DDP does before every forward pass.
        broadcast_tensors_(self.members.float_buffers, self._communicators.group, "buffers")
        participation = agree(self._gather())
        first_buffers = self._keep_local_updates()
        with profiler_range("hier/block/optimizer_state"):
            self.local_state.collect(participation)
        with profiler_range("hier/block/models"):
            found = [bucket.synchronise_(participation) for bucket in self._buckets]
        for bucket in self._buckets:
            bucket.start_overlap(participation)
        for tensor, value in zip(self.members.other_buffers, first_buffers, strict=True):
            tensor.copy_(value)
        self._broadcast_other_buffers(participation)
        self._copy_to_other_models()
        for _ in self._models.each():
            if not participation.takes_part:
                forget_state_(self._optimizer, self.members.parameters, self.local_state.carried)
            self.local_state.finish()
        return BlockReport.of(found, participation, self._communicators)

    def write_global_model(self, agree: Agree, *, pending: bool) -> Participation:
        """Write the global model W into the tensors, in place; W and Delta stay as they are.

        Args:
            agree: as in :meth:`synchronise`; its result is returned.
            pending: whether steps were taken since the last synchronisation. W is then the one
                that would result if the block ended here. Buffers also change in validation, so
                they are averaged in any case.

        """
        broadcast_tensors_(self.members.float_buffers, self._communicators.group, "buffers")
        participation = agree(self._gather())
        for bucket in self._buckets:
            bucket.write_global_(participation, pending=pending)
        self._broadcast_other_buffers(participation)
        return participation

    @torch.no_grad()
    def regrown(self, members: Members) -> ModelBlock:
        """The same block with more members, whose present values are their global ones.

        The old block writes its state into the tensors and the new one reads it, then they get
        their local values back. Error feedback is dropped. A collective of the group.

        Raises:
            ValueError: this rank has several local models.
        """
        if self._models.number > 1:
            raise ValueError(
                f"virtual_workers={self._models.number} can't be combined with unfreezing "
                "parameters while training: have them trainable from the start, or start a rank "
                "for each worker"
            )
        saved = [(t, t.detach().clone()) for t in [*members.tensors, *self.local_state.carried]]
        self._communicators.route.in_flight.finish()
        for bucket in self._buckets:
            bucket.recall_()
        block = ModelBlock(
            members,
            self._optimizer,
            config=self._config,
            placement=self._placement,
            communicators=self._communicators,
            models=self._models,
        )
        block.local_state.inherit(self.local_state)
        for name in self._buckets[0].vectors() if self._buckets else ():
            for parameter in members.parameters:
                parameter.zero_()
            for bucket in self._buckets:
                bucket.write_vector_(name)
            for bucket in block._buckets:
                bucket.read_vector_(name)
        older = {bucket.dtype: bucket for bucket in self._buckets}
        for bucket in block._buckets:
            if bucket.dtype in older:
                bucket.follow(older[bucket.dtype])
        for tensor, local in saved:
            tensor.copy_(local)
        return block

    def _gather(self) -> ModelHealth:
        """Copy this rank's shard into the transfer buffers; returns the whole model's health."""
        health = ModelHealth()
        for turn, _ in enumerate(self._models.each()):
            health = sum((bucket.gather(add=turn > 0) for bucket in self._buckets), health)
            self.local_state.note(first=turn == 0)
        if not all(bucket.is_all for bucket in self._buckets):
            # Other shards are overwritten, but what this rank computed from them is not.
            own = self.members
            carried = self.local_state.carried
            health += ModelHealth.of_tensors(own.parameters, own.float_buffers, carried)
        return health

    def _keep_local_updates(self) -> list[Tensor]:
        """Keep each local model's update; returns the other buffers of the first model."""
        first: list[Tensor] = []
        for turn, _ in enumerate(self._models.each()):
            if turn == 0:
                first = [tensor.clone() for tensor in self.members.other_buffers]
            for bucket in self._buckets:
                bucket.keep_local_update_()
        return first

    def _copy_to_other_models(self) -> None:
        """Give the other local models of this rank the result of the one in the module."""
        equal = [(tensor, tensor.data) for tensor in self.members.other_buffers]
        for _ in self._models.others():
            for bucket in self._buckets:
                bucket.write_()
            for tensor, value in equal:
                tensor.copy_(value)

    def _broadcast_other_buffers(self, participation: Participation) -> None:
        """Give all ranks those of the first healthy group's first rank."""
        source = self._communicators.layout.rank((0, participation.first))
        world = self._communicators.world
        broadcast_tensors_(self.members.other_buffers, world, "buffers", source=source)
