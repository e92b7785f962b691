"""A fragment whose mean local update is computed while training continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.delayed_bucket import DelayedBucket
from lightning_hier.comm.blocks.fragment import BlockContext, Fragment
from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.trained import Members
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Pipeline

# Chunks in flight at the same time, enough to keep a link busy between two steps.
_AT_ONCE = 8


class DelayedFragment(Fragment):
    """Parameters of one optimizer, sent by :meth:`read` and :meth:`send`, applied by :meth:`apply`.

    The collectives of a mean are distributed over the steps between :meth:`send` and
    :meth:`apply`. The equations are those of
    :class:`~lightning_hier.comm.blocks.delayed_bucket.DelayedBucket`.

    Args:
        members: as in :class:`Fragment`, parameters only.
        context: as in :class:`Fragment`.

    """

    buckets: Sequence[DelayedBucket]

    def __init__(self, members: Members, context: BlockContext) -> None:
        super().__init__(members, context)
        self._queue = context.communicators.route.in_flight
        self._work: Pipeline | None = None
        self._sent = Norms(0.0)

    def _bucket(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], carried: Sequence[Tensor]
    ) -> DelayedBucket:
        """See :class:`Fragment`."""
        shard, exchange = self._exchanged(parameters, buffers, carried)
        outer = self._outer_step(shard, from_updates=True)
        models, merge = self._models, self._context.config.merge
        return DelayedBucket(shard, exchange, outer, self.local_state, models=models, merge=merge)

    @property
    def has_update(self) -> bool:
        """Whether an update is in flight."""
        return any(bucket.has_update for bucket in self.buckets)

    def send(self, participation: Participation, norms: Norms, *, delay: int) -> None:
        """Put the local update in flight, after :meth:`read`.

        An excluded group, which sends zeros, must call :meth:`reset_local_model` afterwards.

        Args:
            participation: groups whose updates are averaged.
            norms: norms of the models that are averaged, which :meth:`apply` reports.
            delay: steps until :meth:`apply`.

        """
        means = [mean for bucket in self.buckets for mean in bucket.send(participation)]
        due = sum(bucket.due for bucket in self.buckets)
        self._work = self._queue.add(means, at_once=_AT_ONCE, due=due, steps=delay)
        self._sent = norms
        self.steps, self.samples = 0, 0.0

    def apply(self) -> Norms | None:
        """Apply the mean in flight, if there is one, and merge it with the local models, in place.

        A collective of the group, which waits for the mean.

        Returns:
            The norms of this rank's shard, or None if nothing was in flight.

        """
        norms = None
        if self.has_update:
            self._queue.finish(self._work)
            norms = self._sent
            for bucket in self.buckets:
                bucket.advance()
                norms.add(*bucket.take_squares())
            for _ in self._models.each():
                with profiler_range("hier/block/models"):
                    Pipeline(
                        bucket.merge(chunk) for bucket in self.buckets for chunk in bucket.chunks
                    ).run()
                for bucket in self.buckets:
                    bucket.finish(carried=False)
            for bucket in self.buckets:
                bucket.begin_block()
            merge = self._context.config.merge
            if merge != "progress":
                self.samples *= merge  # the share of their update that has been kept
            if merge == 0.0:
                self.steps = 0
        for _ in self._models.each():
            self.local_state.finish()
        return norms

    @property
    def has_pending(self) -> bool:
        """See :class:`Fragment`. With ``merge=0``, steps in flight would be given up."""
        given_up = self.has_update and self._context.config.merge == 0.0
        return super().has_pending and not given_up

    def continue_(self, older: Fragment) -> None:
        """See :class:`Fragment`."""
        super().continue_(older)
        assert isinstance(older, DelayedFragment)
        self._sent = older._sent

    def state(self) -> dict[str, Any]:
        """See :class:`Fragment`. Finishes what is in flight: a collective of the world."""
        self._queue.finish()
        return {**super().state(), "norms": [self._sent.models, self._sent.mean]}

    def load(self, state: Mapping[str, Any]) -> None:
        """See :class:`Fragment`."""
        super().load(state)
        self._sent = Norms(*state["norms"])

    def load_local(self, state: Mapping[str, Any]) -> None:
        """See :class:`Fragment`."""
        for bucket, own in zip(self.buckets, state["buckets"], strict=True):
            bucket.load_local(own)
