"""A fragment of the model: tensors that are synchronised at the same step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from lightning_hier.algorithms.exchange_chunks import chunk_elements
from lightning_hier.comm.blocks.block_context import BlockContext
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.bucket import Bucket
from lightning_hier.comm.blocks.exchange import Exchange, make_codec
from lightning_hier.comm.blocks.health import Averaging, ModelHealth
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Shard
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Pipeline, Stages

Counts = Mapping[Parameter, list[float]]


class Fragment:
    """Some tensors of one optimizer, synchronised by :meth:`read` and :meth:`synchronise`.

    Unless stated otherwise, methods are collectives of the world: every rank must call them at the
    same step.

    Args:
        members: tensors of the fragment. Their current values, equal on all ranks, are the start
            model.
        context: optimizer, settings and channels.

    Attributes:
        members: see above.
        local_state: state of the optimizer for these parameters, which is averaged with them if the
            settings say so.
        buckets: one for each dtype, or more if ranks of a group hold some tensors together.
        steps: steps whose local update has not been sent.
        samples: samples of these steps on this rank, if groups count by them.

    """

    # Whether updates instead of models are exchanged also where nothing is quantised.
    _sends_updates: bool = False

    def __init__(self, members: Members, context: BlockContext) -> None:
        self.members = members
        self._context = context
        self.steps = 0
        self.samples = 0.0
        # Synchronisations since the optimizer's state was averaged, or its first block.
        self._since_average = 0
        config, by_kind = context.config, context.placement.by_kind
        self._state_every = config.state_every
        # A single model is not averaged: its optimizer is not changed and nothing is quantised.
        self.local_state = LocalState()
        if context.averages:
            self.local_state = config.local_state(
                context.optimizer,
                members.parameters,
                context.communicators.across,
                context.communicators.models,
                context.eta_of,
            )
        parameters, buffers = by_kind(members.parameters), by_kind(members.float_buffers)
        carried = by_kind(self.local_state.carried)
        self.buckets: Sequence[Bucket] = [
            self._bucket(parameters.get(kind, []), buffers.get(kind, []), carried.get(kind, []))
            # Ranks must synchronise buckets in one order. That of a set differs between processes.
            for kind in sorted({*parameters, *buffers, *carried})
        ]

    def _bucket(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], carried: Sequence[Tensor]
    ) -> Bucket:
        """Create the bucket of all tensors of one kind."""
        context, example = self._context, [*parameters, *buffers, *carried][0]
        config, route, codec = context.config, context.communicators.route, None
        if context.averages:
            codec = make_codec(config.across_dtype, example.dtype, config.across_density)
        chunk = chunk_elements(
            on_cpu=example.device.type == "cpu",
            quantised=codec is not None,
            one_host=route.one_host,
        )
        shard = Shard(parameters, buffers, carried, context.placement, chunk=chunk)
        exchange = Exchange(shard, codec, route)
        model, updates = shard.read()[shard.parameters], self._sends_updates or codec is not None
        outer = context.outer_step(model, from_updates=updates)
        return self._assembled(shard, exchange, outer)

    def _assembled(self, shard: Shard, exchange: Exchange, outer: OuterStep) -> Bucket:
        return Bucket(shard, exchange, outer, self.local_state)

    def read(self) -> ModelHealth:
        """Copy this rank's shard into the transfer buffers. Returns the health of the fragment.

        A collective of the group. All ranks exchange their health before one of the next methods.
        """
        # As DDP does before every forward pass.
        group = self._context.communicators.group
        whole = [b for b in self.members.float_buffers if not isinstance(b, DTensor)]
        broadcast_tensors_(whole, group, "buffers")
        health = ModelHealth(samples=(self.samples,))
        for bucket in self.buckets:
            health += bucket.read()
        self.local_state.note()
        if not all(bucket.shard.is_all for bucket in self.buckets):
            # NaN outside of the shard that was read would be overwritten, but not what this rank
            # has computed from it, such as residuals and optimizer state.
            members = self.members
            carried = self.local_state.carried
            health += ModelHealth.of_tensors(members.parameters, members.float_buffers, carried)
        return health

    def synchronise(self, averaging: Averaging) -> Norms:
        """Average the models of all groups and start the next block from the result, in place.

        Parameters become W_g(t), floating-point buffers their mean, other buffers those of the
        first rank. Returns the norms of this rank's shard.

        Args:
            averaging: how the models are averaged, after :meth:`read`.

        """
        norms = Norms(averaging.mean_squares)
        for bucket in self.buckets:
            bucket.outer.set_models(averaging.effective)
        carried = self._carries_state()
        # First, because its collective of step counts is needed by the first chunk of moments.
        with profiler_range("hier/block/optimizer_state"):
            self.local_state.send(averaging, exchanged=carried)
        with profiler_range("hier/block/models"):
            Pipeline(
                bucket.synchronise(chunk, averaging, norms, carried=carried)
                for bucket in self.buckets
                for chunk in bucket.shard.chunks
            ).run()
        for bucket in self.buckets:
            bucket.shard.write_scattered(carried=carried)
        self._broadcast_other_buffers()
        self.local_state.finish(exchanged=carried)
        self.steps, self.samples = 0, 0.0
        return norms

    def _carries_state(self) -> bool:
        """Count a synchronisation. Returns whether the optimizer's state is averaged with it."""
        self._since_average += 1
        carried = self._since_average >= self._state_every
        if carried:
            self._since_average = 0
        return carried

    def write_global(self, averaging: Averaging) -> Iterator[Stages]:
        """Stages of each chunk, which write W, and the mean of the buffers, into the tensors.

        :meth:`finish_global` must follow. The outer step is unchanged.

        Args:
            averaging: as in :meth:`synchronise`.

        """
        # Without steps since the last synchronisation, a mean would apply momentum once more.
        # Buffers are always averaged, because they may change in validation.
        return (
            bucket.write_global(chunk, averaging, pending=self.has_pending)
            for bucket in self.buckets
            for chunk in bucket.shard.chunks
        )

    @property
    def has_pending(self) -> bool:
        """Whether a synchronisation now would have a local update to send."""
        return self.steps > 0

    def finish_global(self) -> None:
        """Write the other buffers, and the tensors that are not contiguous."""
        for bucket in self.buckets:
            bucket.shard.write_scattered(carried=False)
        self._broadcast_other_buffers()

    def _broadcast_other_buffers(self) -> None:
        """Copy the other buffers of the first rank to all ranks."""
        buffers = self.members.other_buffers
        broadcast_tensors_(buffers, self._context.communicators.world, "buffers")

    def continue_(self, older: Fragment) -> None:
        """Copy the state of a fragment with fewer tensors. A collective of the group."""
        self.steps, self.samples = older.steps, older.samples
        self._since_average = older._since_average
        self.local_state.set_counts(older.local_state.counts())
        before = {bucket.kind: bucket for bucket in older.buckets}
        # A kind without an older bucket has new tensors only, whose values are their start.
        for bucket in self.buckets:
            if bucket.kind in before:
                bucket.continue_(before[bucket.kind])

    def state(self) -> dict[str, Any]:
        """This rank's shard of the state, without copying tensors."""
        return {
            "steps": self.steps,
            "samples": self.samples,
            "pending": self.has_pending,
            "since_average": self._since_average,
            "counts": [*self.local_state.counts().values()],
            "buckets": [bucket.state() for bucket in self.buckets],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of the same shards. Does not communicate."""
        self.steps, self.samples = state["steps"], state["samples"]
        self._since_average = state["since_average"]
        # In the order of the parameters, which is the same in both runs.
        counts = zip(self.local_state.counts(), state["counts"], strict=True)
        self.local_state.set_counts(dict(counts))
        for bucket, bucket_state in zip(self.buckets, state["buckets"], strict=True):
            bucket.load(bucket_state)
