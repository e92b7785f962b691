"""Block synchronisation of the tensors of one optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.block_report import BlockReport
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.delay import Delay
from lightning_hier.comm.blocks.exchange import Exchange, make_codec
from lightning_hier.comm.blocks.fragment import Fragment
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.local_state import LocalState, forget_state_
from lightning_hier.comm.blocks.shard import Shard
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.broadcast import broadcast_tensors_, by_dtype
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Pipeline

Counts = Mapping[Parameter, list[float]]


class ModelBlock:
    """Global model and update of one optimizer's tensors.

    Every rank of a group must hold all parameters. Unless stated otherwise, methods are collectives
    of the world: every rank must call them at the same step.

    Args:
        members: tensors of the block. Their current values, equal on all ranks, are the start
            model.
        optimizer: optimizer of these tensors.
        config: settings of block synchronisation.
        placement: division of the model among the ranks of a group.
        communicators: channels of this rank.
        models: local models of this rank.

    Attributes:
        members: see above.
        stepping: creates the context of each step of the optimizer. Does not communicate.
        local_state: state of the optimizer, which is averaged with the model if the settings say
            so.

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
        self.stepping = config.stepping(optimizer, number)
        # A single model is not averaged: its optimizer is not changed and nothing is quantised.
        self.local_state = (
            config.local_state(optimizer, members.parameters, communicators.across, number)
            if number > 1
            else LocalState()
        )
        parameters, buffers = by_dtype(members.parameters), by_dtype(members.float_buffers)
        carried = by_dtype(self.local_state.carried)
        self._fragments = [
            self._fragment(parameters.get(own, []), buffers.get(own, []), carried.get(own, []))
            for own in sorted({*parameters, *buffers, *carried}, key=str)
        ]

    def _fragment(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], carried: Sequence[Tensor]
    ) -> Fragment:
        """Create the fragment of all tensors of one dtype."""
        config, route, number = self._config, self._communicators.route, self._communicators.models
        dtype = [*parameters, *buffers, *carried][0].dtype
        codec = make_codec(config.across_dtype, dtype) if number > 1 else None
        delayed = config.overlap and number > 1
        shard = Shard(parameters, buffers, carried, self._placement, quantised=codec is not None)
        outer = config.outer_step(
            shard.read()[shard.parameters].clone(),
            num_models=number,
            from_updates=delayed or codec is not None,
        )
        exchange = Exchange(shard, codec, route, delayed=delayed)
        delay = Delay(outer, self._models, route.in_flight, config.steps) if delayed else None
        return Fragment(shard, exchange, outer, self.local_state, delay)

    def state(self) -> list[dict[str, Any]]:
        """This rank's shard of each fragment, without copying tensors."""
        return [fragment.state() for fragment in self._fragments]

    def load(self, states: Sequence[Mapping[str, Any]], counts: Counts) -> None:
        """Continue in the middle of a block of the same groups."""
        for fragment, state in zip(self._fragments, states, strict=True):
            fragment.load(state)
        self.local_state.set_counts(counts)

    def load_local(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Load the state of another local model of this rank, which is in the module."""
        for fragment, state in zip(self._fragments, states, strict=True):
            fragment.load_local(state)

    @torch.no_grad()
    def restart(
        self, saved: Sequence[tuple[Mapping[str, Any], Tensor]], counts: Counts, *, pending: bool
    ) -> None:
        """Start a block from a run of other groups.

        A collective of the group.

        Args:
            saved: for each fragment, in the order of :meth:`state`, state and model as in
                :meth:`~lightning_hier.comm.blocks.outer_step.OuterStep.adopt`.
            counts: counts of the local state.
            pending: as in :meth:`~lightning_hier.comm.blocks.outer_step.OuterStep.adopt`.

        """
        for fragment, (state, model) in zip(self._fragments, saved, strict=True):
            fragment.restart(state, model, pending=pending)
        self.local_state.go_on(counts)

    def read(self) -> ModelHealth:
        """Copy this rank's shard into the transfer buffers. Returns the health of the whole model.

        A collective of the group. All ranks exchange their health before one of the next methods.
        """
        # As DDP does before every forward pass.
        broadcast_tensors_(self.members.float_buffers, self._communicators.group, "buffers")
        health = ModelHealth()
        for turn, _ in enumerate(self._models.each()):
            for fragment in self._fragments:
                health += fragment.read(add=turn > 0)
            self.local_state.note(first=turn == 0)
        if not all(fragment.is_all for fragment in self._fragments):
            # Other shards will be overwritten, but not the values that this rank computed from
            # them.
            own = self.members
            carried = self.local_state.carried
            health += ModelHealth.of_tensors(own.parameters, own.float_buffers, carried)
        return health

    def synchronise(self, participation: Participation) -> BlockReport:
        """Average the models of all groups and start the next block from the result, in place.

        Parameters become W_g(t), floating-point buffers their mean, other buffers those of the
        first participating group. An excluded group gets the same, and new optimizer state.

        Args:
            participation: groups whose models are averaged, after :meth:`read`.

        """
        first_buffers = self._keep_local_updates()
        with profiler_range("hier/block/optimizer_state"):
            self.local_state.collect(participation)
        with profiler_range("hier/block/models"):
            for fragment in self._fragments:
                fragment.begin(participation)
            Pipeline(
                fragment.synchronise(chunk, participation)
                for fragment in self._fragments
                for chunk in fragment.chunks
            ).run()
        norms = [fragment.finish(participation) for fragment in self._fragments]
        # With one local model, first_buffers is empty: its buffers are in the module already.
        for tensor, value in zip(self.members.other_buffers, first_buffers, strict=False):
            tensor.copy_(value)
        self._broadcast_other_buffers(participation)
        self._begin_next_block(participation)
        return BlockReport.of(norms, participation, self._communicators)

    def write_global_model(self, participation: Participation, *, pending: bool) -> None:
        """Write the global model W into the tensors, in place. The outer step is unchanged.

        A collective of the world, after all work in flight.

        Args:
            participation: as in :meth:`synchronise`.
            pending: whether steps were made since the last synchronisation. W is then the model
                that would result if the block ended now. Buffers are always averaged, because they
                may change in validation.

        """
        self._communicators.route.in_flight.finish()
        Pipeline(
            fragment.write_global(chunk, participation, pending=pending)
            for fragment in self._fragments
            for chunk in fragment.chunks
        ).run()
        for fragment in self._fragments:
            fragment.finish_global()
        self._broadcast_other_buffers(participation)

    @torch.no_grad()
    def regrown(self, members: Members) -> ModelBlock:
        """The same block with more members, whose current values are their global ones.

        Error feedback is discarded. A collective of the group.

        Raises:
            ValueError: this rank has several local models.

        """
        if self._models.number > 1:
            raise ValueError(
                f"virtual_workers={self._models.number} can't be combined with unfreezing "
                "parameters during training: make them trainable from the start, or start one rank "
                "per worker"
            )
        self._communicators.route.in_flight.finish()
        block = ModelBlock(
            members,
            self._optimizer,
            config=self._config,
            placement=self._placement,
            communicators=self._communicators,
            models=self._models,
        )
        block.local_state.set_counts(self.local_state.counts())
        older = {fragment.dtype: fragment for fragment in self._fragments}
        for fragment in block._fragments:
            if fragment.dtype in older:
                fragment.continue_(older[fragment.dtype])
        return block

    def _keep_local_updates(self) -> list[Tensor]:
        """Keep the update of each local model, and the other buffers of the first model."""
        first: list[Tensor] = []
        if self._models.number == 1:
            return first
        for turn, _ in enumerate(self._models.each()):
            if turn == 0:
                first = [tensor.clone() for tensor in self.members.other_buffers]
            for fragment in self._fragments:
                fragment.keep_local_update_()
        return first

    def _begin_next_block(self, participation: Participation) -> None:
        """Write the result into all local models of this rank, and their optimizer state."""
        result = self._models.current
        equal = [(tensor, tensor.data) for tensor in self.members.other_buffers]
        for model in self._models.each():
            if model != result:
                for fragment in self._fragments:
                    fragment.write_()
                for tensor, value in equal:
                    tensor.copy_(value)
            if not participation.takes_part:
                forget_state_(self._optimizer, self.members.parameters, self.local_state.carried)
            self.local_state.finish()

    def _broadcast_other_buffers(self, participation: Participation) -> None:
        """Copy the other buffers of the first participating group's first rank to all ranks."""
        world, layout = self._communicators.world, self._communicators.layout
        source = participation.first * layout.sizes[0]
        broadcast_tensors_(self.members.other_buffers, world, "buffers", source=source)
