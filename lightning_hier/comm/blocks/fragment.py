"""A fragment of the model: tensors that are synchronised at the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from lightning_hier.algorithms.chunks import exchanged_length
from lightning_hier.comm.blocks.block_context import BlockContext
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.bucket import Bucket, given_up
from lightning_hier.comm.blocks.exchange import Exchange, make_codec
from lightning_hier.comm.blocks.health import Averaging, ModelHealth
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.broadcast import broadcast_buffers_, broadcast_copies, broadcast_tensors_
from lightning_hier.comm.flat import FlatView
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Pipeline, Stages

Counts = Mapping[Parameter, list[float]]

# Chunks in flight at the same time, enough to keep a link busy between two steps.
_AT_ONCE = 8


class Fragment:
    """Some tensors of one optimizer, which are synchronised at the same step.

    After :meth:`read`, :meth:`send` puts the local update in flight, and :meth:`apply` takes the
    outer step with its mean, some steps later. Between them, the collectives of the mean are
    distributed over the steps. Without a delay, :meth:`synchronise` does both at once, chunk by
    chunk. Where groups come and go, they vote between :meth:`exchange` and :meth:`commit`, or
    :meth:`undo` restores the state before. The equations are those of
    :class:`~lightning_hier.comm.blocks.bucket.Bucket` and, for moments of the local optimizer, of
    :class:`~lightning_hier.comm.blocks.adam_state.AdamMoments`.

    Unless stated otherwise, methods are collectives of the world: every rank must call them at the
    same step.

    Args:
        members: tensors of the fragment; if it is delayed, parameters only. Their current values,
            equal on all ranks, are the start model.
        context: optimizer, settings and channels.
        delayed: whether :meth:`apply` follows some time after :meth:`send`.

    Attributes:
        members: see above.
        local_state: state of the optimizer for these parameters, which is averaged with them if the
            settings say so.
        buckets: one for each dtype, or more if ranks of a group hold some tensors together.
        steps: steps whose local update has not been sent.
        samples: samples of these steps on this rank, if groups count by them.

    """

    def __init__(self, members: Members, context: BlockContext, *, delayed: bool = False) -> None:
        self.members = members
        self._context = context
        self._delayed = delayed
        self._queue = context.communicators.route.in_flight
        self._work: Pipeline | None = None
        # State and counts before an exchange on which the groups have not voted.
        self._before: tuple[dict[str, Any], Counts] | None = None
        # Other buffers of the first group, which are written when the means are applied.
        self._copies: list[tuple[FlatView, Tensor]] = []
        self.steps = 0
        self.samples = 0.0
        self._given_up = 0.0  # of the steps whose local update has not been sent
        self._norms = Norms(0.0)
        self._carried = False  # whether the last update was sent with state of the optimizer
        # Synchronisations since the optimizer's state was averaged, or its first block.
        self._since_average = 0
        config, by_kind = context.config, context.placement.by_kind
        self._state_every = config.state_every
        # A single model is not averaged: its optimizer is not changed and nothing is quantised.
        self.local_state = LocalState()
        if context.averages:
            self.local_state = config.local_state(context, members.parameters)
        parameters, buffers = by_kind(members.parameters), by_kind(members.float_buffers)
        carried = by_kind(self.local_state.carried)
        self.buckets = [
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
        chunk = exchanged_length(
            on_cpu=example.device.type == "cpu",
            quantised=codec is not None,
            one_host=route.one_host,
        )
        shard = Shard(parameters, buffers, carried, context.placement, chunk=chunk)
        model, delayed = shard.read()[shard.parameters], self._delayed
        # The number of groups that come and go may differ at every mean, and with it the momentum.
        updates = delayed or codec is not None or context.membership is not None
        outer = context.outer_step(model, from_updates=updates)
        exchange = Exchange(shard, codec, route)
        # Averaged buffers are not merged, and have no delay.
        merge = context.merge if parameters else 0.0
        return Bucket(shard, exchange, outer, self.local_state, merge=merge, delayed=delayed)

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

    @property
    def has_update(self) -> bool:
        """Whether an update was sent and is not applied."""
        return any(bucket.has_update for bucket in self.buckets)

    def synchronise(self, averaging: Averaging, norms: Norms) -> None:
        """Average the models of all groups and start the next block from the result, in place.

        Parameters become W_g(t), floating-point buffers their mean, other buffers those of the
        first rank.

        Args:
            averaging: how the models are averaged, after :meth:`read`.
            norms: norms to which those of this rank's shard are added.

        """
        self._begin(averaging, norms)
        self._run(
            chain(
                bucket.exchange.chunk(chunk, averaging, keep=True, carried=self._carried),
                bucket.apply(chunk, norms, carried=self._carried),
            )
            for bucket, chunk in self._chunks()
        )
        broadcast_buffers_(self.members.other_buffers, self._context.communicators)
        self.steps, self.samples = 0, 0.0

    def send(self, averaging: Averaging, norms: Norms, *, delay: int) -> None:
        """Put the local update in flight, after :meth:`read`.

        Args:
            averaging: how the updates are averaged.
            norms: norms of the models that are averaged, which :meth:`apply` returns.
            delay: steps until :meth:`apply`.

        """
        self._begin(averaging, norms)
        means = [
            mean
            for bucket in self.buckets
            for mean in bucket.send(averaging, carried=self._carried)
        ]
        self._work = self._queue.add(means, at_once=_AT_ONCE, steps=delay)
        self.steps, self.samples = 0, 0.0

    def exchange(self, agree: Callable[[ModelHealth], Averaging], *, delay: int) -> None:
        """Read and send, such that :meth:`undo` restores the state before.

        :meth:`complete` or :meth:`undo` follows. A collective of the ranks that average. One that
        fails does not keep the other ranks of its group waiting.

        Args:
            agree: agrees on how the models are averaged, from the health of what was read.
            delay: as in :meth:`send`.

        """
        before = self.state()
        # Other vectors are not copied: what a send changes in them has no meaning before it.
        for state in before["buckets"]:
            errors = state["error_feedback"] or {}
            copies = {n: v.clone() if isinstance(v, Tensor) else v for n, v in errors.items()}
            state["error_feedback"] = copies or None
            if state["block_start"] is not None and self._context.merge == "progress":
                state["block_start"] = state["block_start"].clone()
        self._before = before, self.local_state.counts()
        for bucket in self.buckets:  # other groups may be present than before
            bucket.exchange.fit(self._context.communicators.route.inter_host_ranks)
        averaging = agree(self.read())
        self.send(averaging.of(0), Norms(averaging.mean_squares), delay=delay)

    def complete(self) -> None:
        """Wait for the means of :meth:`exchange`, and write nothing into the tensors.

        :meth:`commit` or :meth:`undo` follows. A collective of the ranks that average.
        """
        if self._work is not None:
            self._queue.finish(self._work)
        self.local_state.wait()
        buffers, across = self.members.other_buffers, self._context.communicators.across
        self._copies = [*broadcast_copies(buffers, across, "buffers")]

    def commit(self) -> Norms | None:
        """Apply the means of :meth:`exchange`, as :meth:`apply` does. A collective of the group."""
        norms = self.apply()
        for view, values in self._copies:
            view.write_from(values)
        # Each rank has those of the rank at its position in the first group.
        group = self._context.communicators.group
        broadcast_tensors_(self.members.other_buffers, group, "buffers")
        self._before, self._copies = None, []
        return norms

    def undo(self) -> None:
        """Restore the state before :meth:`exchange`, if it was called. Does not communicate."""
        if self._before is not None:
            # Collectives in flight could otherwise still write into the transfer buffer.
            self._queue.abandon()
            self.load(self.state())
        self._before, self._copies = None, []

    def forget_errors(self) -> None:
        """Set the error feedback to zero."""
        for bucket in self.buckets:
            if bucket.exchange.feedback is not None:
                bucket.exchange.feedback.forget()

    def apply(self) -> Norms | None:
        """Apply the mean in flight, if there is one, and merge it with the local model, in place.

        A collective of the group, which waits for the mean.

        Returns:
            The norms of this rank's shard, or None if nothing was in flight.

        """
        if not self.has_update:
            # At every synchronisation, also at the first.
            self.local_state.finish(exchanged=False)
            return None
        # Pipelines of later sends go on. A mean that was loaded is complete.
        if self._work is not None:
            self._queue.finish(self._work)
        self.local_state.note()
        self._run(
            bucket.apply(chunk, self._norms, carried=self._carried)
            for bucket, chunk in self._chunks()
        )
        lost = given_up(self._context.merge)
        self._given_up = lost * self.steps
        self.samples *= 1.0 - lost
        return self._norms

    def _begin(self, averaging: Averaging, norms: Norms) -> None:
        """Begin to send what was read."""
        self._norms, self._carried = norms, self._carries_state()
        # Steps that a merge has given up are not in the models, so rho must not count them.
        kept = 1.0 - self._given_up / self.steps if self.steps else 1.0
        self._given_up = 0.0
        for bucket in self.buckets:
            bucket.outer.set_models(averaging.effective)
        # First, because its collective of step counts is needed by the first chunk of moments.
        with profiler_range("hier/block/optimizer_state"):
            self.local_state.send(averaging, exchanged=self._carried, kept=kept)

    def _run(self, chunks: Iterable[Stages]) -> None:
        """Apply all chunks, and begin the next block."""
        with profiler_range("hier/block/models"):
            Pipeline(chunks).run()
        for bucket in self.buckets:
            bucket.begin_block(carried=self._carried)
        self.local_state.finish(exchanged=self._carried)

    def _chunks(self) -> Iterator[tuple[Bucket, Chunk]]:
        return ((bucket, chunk) for bucket in self.buckets for chunk in bucket.shard.chunks)

    def _carries_state(self) -> bool:
        """Count a synchronisation. Returns whether the optimizer's state is averaged with it."""
        self._since_average += 1
        due = self._since_average >= self._state_every
        if due:
            self._since_average = 0
        return due and bool(self.local_state.carried)

    def write_global(self, averaging: Averaging | None, *, pending: bool) -> Iterator[Stages]:
        """Stages of each chunk, which write W, and the mean of the buffers, into the tensors.

        :meth:`finish_global` must follow. The outer step is unchanged.

        Args:
            averaging: as in :meth:`synchronise`. None: other groups take no part, buffers keep the
                values of this one, and the block does not end now.
            pending: whether to write the W that would result if the block ended now.

        """
        # Buffers are always averaged, because they may change in validation.
        return (
            bucket.write_global(chunk, averaging, pending=pending)
            for bucket, chunk in self._chunks()
        )

    @property
    def has_pending(self) -> bool:
        """Whether a synchronisation now would have a local update to send."""
        # With ``merge=0``, steps in flight are given up.
        gives_up = self.has_update and self._context.merge == 0.0
        return self.steps > self._given_up and not gives_up

    def finish_global(self) -> None:
        """Write the other buffers, and the tensors that are not contiguous."""
        for bucket in self.buckets:
            bucket.shard.write_scattered(carried=False)
        broadcast_buffers_(self.members.other_buffers, self._context.communicators)

    def load_grown(self, older: Fragment) -> None:
        """Load the state of a fragment with fewer tensors. A collective of the group."""
        self.steps, self.samples = older.steps, older.samples
        self._since_average = older._since_average
        self._norms, self._given_up = older._norms, older._given_up
        self._carried = older._carried
        self.local_state.set_counts(older.local_state.counts())
        before = {bucket.kind: bucket for bucket in older.buckets}
        # A kind without an older bucket has new tensors only, whose values are their start.
        for bucket in self.buckets:
            if bucket.kind in before:
                bucket.load_grown(before[bucket.kind])

    def counts(self) -> Counts:
        """Counts of the local optimizer's state, as of :meth:`state`."""
        return self.local_state.counts() if self._before is None else self._before[1]

    def state(self) -> dict[str, Any]:
        """This rank's shard of the state, without copying tensors.

        It finishes what is in flight: a collective of the world if there is anything. Where groups
        come and go, it is the state without what they have not voted on.
        """
        if self._before is not None:
            before, _ = self._before
            steps, samples = (before[name] + getattr(self, name) for name in ("steps", "samples"))
            return {**before, "steps": steps, "samples": samples}
        self._queue.finish()
        return {
            "steps": self.steps,
            "samples": self.samples,
            "given_up": self._given_up,
            "norms": [self._norms.models, float(self._norms.mean)],
            "carried": self._carried,
            "pending": self.has_pending,
            "since_average": self._since_average,
            "counts": [*self.local_state.counts().values()],
            "buckets": [bucket.state(carried=self._carried) for bucket in self.buckets],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of the same shards. Does not communicate."""
        self.steps, self.samples = state["steps"], state["samples"]
        self._since_average = state["since_average"]
        self._given_up, self._carried = state["given_up"], state["carried"]
        self._norms = Norms(*state["norms"])
        self.local_state.set_counts({})  # without a sum in flight, which may have failed
        # In the order of the parameters, which is the same in both runs.
        counts = zip(self.local_state.counts(), state["counts"], strict=True)
        self.local_state.set_counts(dict(counts))
        for bucket, bucket_state in zip(self.buckets, state["buckets"], strict=True):
            bucket.load(bucket_state)
