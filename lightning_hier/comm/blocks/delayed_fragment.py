"""A fragment whose mean local update is computed while training continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hier.comm.blocks.block_context import BlockContext
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.delayed_bucket import DelayedBucket, given_up
from lightning_hier.comm.blocks.exchange import Exchange
from lightning_hier.comm.blocks.fragment import Fragment
from lightning_hier.comm.blocks.health import Averaging
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Shard
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Pipeline

# Chunks in flight at the same time, enough to keep a link busy between two steps.
_AT_ONCE = 8


class DelayedFragment(Fragment):
    """Parameters of one optimizer, sent by :meth:`read` and :meth:`send`, applied by :meth:`apply`.

    The collectives of a mean are distributed over the steps between :meth:`send` and
    :meth:`apply`. The equations are those of
    :class:`~lightning_hier.comm.blocks.delayed_bucket.DelayedBucket` and, for the moments of the
    local optimizer, of :class:`~lightning_hier.comm.blocks.adam_state.AdamMoments`.

    Args:
        members: as in :class:`Fragment`, parameters only.
        context: as in :class:`Fragment`.

    """

    buckets: Sequence[DelayedBucket]
    _sends_updates = True

    def __init__(self, members: Members, context: BlockContext) -> None:
        super().__init__(members, context)
        self._queue = context.communicators.route.in_flight
        self._work: Pipeline | None = None
        self._sent = Norms(0.0)
        self._given_up = 0.0  # of the steps whose local update has not been sent

    def _assembled(self, shard: Shard, exchange: Exchange, outer: OuterStep) -> DelayedBucket:
        """See :class:`Fragment`."""
        return DelayedBucket(shard, exchange, outer, self.local_state, merge=self._context.merge)

    @property
    def has_update(self) -> bool:
        """Whether an update is in flight."""
        return any(bucket.has_update for bucket in self.buckets)

    @property
    def _has_state(self) -> bool:
        """Whether the last update was sent with state of the local optimizer."""
        return any(bucket.carries for bucket in self.buckets)

    def send(self, averaging: Averaging, norms: Norms, *, delay: int) -> None:
        """Put the local update in flight, after :meth:`read`.

        Args:
            averaging: how the updates are averaged.
            norms: norms of the models that are averaged, which :meth:`apply` reports.
            delay: steps until :meth:`apply`.

        """
        carried = self._carries_state() and bool(self.local_state.carried)
        # Steps that a merge has given up are not in the models, so rho must not count them.
        kept = 1.0 - self._given_up / self.steps if self.steps else 1.0
        self.local_state.send(averaging, exchanged=carried, kept=kept)
        means, due = [], 0
        for bucket in self.buckets:
            stages, due_of_bucket = bucket.send(averaging, carried=carried)
            means += stages
            due += due_of_bucket
        self._work = self._queue.add(means, at_once=_AT_ONCE, due=due, steps=delay)
        self._sent, self._given_up = norms, 0.0
        self.steps, self.samples = 0, 0.0

    def apply(self) -> Norms | None:
        """Apply the mean in flight, if there is one, and merge it with the local model, in place.

        A collective of the group, which waits for the mean.

        Returns:
            The norms of this rank's shard, or None if nothing was in flight.

        """
        norms, carried = None, False
        if self.has_update:
            # Pipelines of later sends go on. A mean that was loaded is complete.
            if self._work is not None:
                self._queue.finish(self._work)
            norms = self._sent
            carried = self._has_state
            self.local_state.note()
            # Start model and optimizer state of the next block, then the local model.
            for bucket in self.buckets:
                bucket.advance(norms)
            self._merge()
            # Not before the local model is merged: its update counts from the old weights.
            for bucket in self.buckets:
                bucket.begin_block()
            lost = given_up(self._context.merge)
            self._given_up = lost * self.steps
            self.samples *= 1.0 - lost
        # At every synchronisation, also at the first, when nothing was in flight yet.
        self.local_state.finish(exchanged=carried)
        return norms

    def _merge(self) -> None:
        """Merge the local model with the start model, in place."""
        with profiler_range("hier/block/models"):
            Pipeline(
                bucket.merge(chunk) for bucket in self.buckets for chunk in bucket.shard.chunks
            ).run()
        for bucket in self.buckets:
            bucket.shard.write_scattered(carried=self._has_state)

    @property
    def has_pending(self) -> bool:
        """See :class:`Fragment`. With ``merge=0``, steps in flight are given up."""
        gives_up = self.has_update and self._context.merge == 0.0
        return self.steps > self._given_up and not gives_up

    def continue_(self, older: Fragment) -> None:
        """See :class:`Fragment`."""
        super().continue_(older)
        assert isinstance(older, DelayedFragment)
        self._sent, self._given_up = older._sent, older._given_up

    def state(self) -> dict[str, Any]:
        """See :class:`Fragment`. Finishes what is in flight: a collective of the world."""
        self._queue.finish()
        return {
            **super().state(),
            "given_up": self._given_up,
            "norms": [self._sent.models, float(self._sent.mean)],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See :class:`Fragment`."""
        super().load(state)
        self._sent, self._given_up = Norms(*state["norms"]), state["given_up"]
