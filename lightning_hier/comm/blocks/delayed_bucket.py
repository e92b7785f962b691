"""A dtype bucket whose mean local update is computed while training continues (overlap)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.comm.blocks.bucket import Bucket
from lightning_hier.comm.blocks.exchange import Exchange
from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Stages

Merge = float | Literal["progress"]
"""What becomes of the steps that a rank makes while an update is in flight."""


class DelayedBucket(Bucket):
    """Parameters of one dtype, whose mean local update is applied some steps after it was sent.

    The local update of group k is its local model w_k minus its block-start weights s_k. At a send
    (:meth:`send`)::

        u_k = w_k - s_k
        s_k = w_k                     with merge="progress"

    and the mean of u_k over the groups is computed during the next steps. Where it is applied
    (:meth:`advance`, then :meth:`merge` for each local model), the outer step takes it and gives
    the start model W_g, and::

        w_k = W_g + (w_k - s_k)       with merge="progress"
        w_k = alpha * w_k + (1 - alpha) * W_g         with merge=alpha, streaming_diloco eq. 3
        s_k = W_g

    With ``"progress"``, every step is part of exactly one u_k. With a number, the part of the steps
    in flight that stays in w_k is part of the next u_k.

    This rank keeps its shard of s_k, for each of its local models, and of the update in flight,
    which is the sum over its local models.

    Args:
        shard: as in :class:`Bucket`, without buffers and optimizer state.
        exchange: as in :class:`Bucket`.
        outer: as in :class:`Bucket`.
        local_state: as in :class:`Bucket`.
        models: local models of this rank.
        merge: ``"progress"`` or alpha in [0, 1].

    Attributes:
        has_update: whether an update is in flight.

    """

    def __init__(
        self,
        shard: Shard,
        exchange: Exchange,
        outer: OuterStep,
        local_state: LocalState,
        *,
        models: LocalModels,
        merge: Merge,
    ) -> None:
        super().__init__(shard, exchange, outer, local_state)
        self._models = models
        self._merge = merge
        model = outer.vectors["global_model"]
        # All local models share their block-start weights until the first send.
        self._block_starts = [model.clone()] * models.number
        self._in_flight = torch.zeros_like(model)
        self.has_update = False

    @property
    def due(self) -> int:
        """Number of :class:`~lightning_hier.comm.stages.Due` of the mean of an update."""
        return self._exchange.due * len(self.chunks)

    @property
    def _block_start(self) -> Tensor:
        """This rank's shard of the block-start weights of the local model in the module."""
        return self._block_starts[self._models.current]

    def _prepare_(self, model: Tensor, place: slice) -> float:
        """See :class:`Bucket`. The values to average are the local update."""
        start = self._block_start[place]
        return kernels_for(model, start).subtract_start_(model, start, None, 0.0)

    def send(self, participation: Participation) -> Iterator[Stages]:
        """Put the local update, after :meth:`read`, in flight. Does not communicate.

        Returns:
            The stages of each chunk, which compute the mean over the groups.

        """
        self._in_flight.copy_(self._shard.values[self._shard.parameters])
        self.has_update = True
        self.outer.set_models(participation.effective)
        if self._merge == "progress":
            for number in self._models.each():
                # Several local models share their block-start weights until they send.
                one = self._models.number == 1
                start = self._block_start if one else torch.empty_like(self._in_flight)
                for piece, parameters, _, _ in self._shard.read_in_pieces(into_buffer=False):
                    start[piece.parameters].copy_(parameters)
                self._block_starts[number] = start
        places = [chunk.parameters for chunk in self.chunks]
        return (
            self._exchange.parameters(self._in_flight[own], own, participation, keep=True)
            for own in places
        )

    def advance(self) -> None:
        """Take the outer step with the mean in flight, which becomes W_g, in place."""
        self.has_update = False
        for chunk in self.chunks:
            with profiler_range("hier/block/outer_step"):
                place = chunk.parameters
                self._count(*self.outer.apply_(self._in_flight[place], place))

    def merge(self, chunk: Chunk) -> Stages:
        """Merge the local model in the module with W_g, after :meth:`advance`.

        A collective of the group. :meth:`finish` must follow.
        """
        place, values = chunk.parameters, self._shard.read_range(chunk)
        self._prepare_(values, place)
        start = self._in_flight[place]
        self._keep_(values, place, start, 1)
        values.add_(start)
        yield self._shard.distribute(chunk.start, chunk.stop)
        self._shard.write_chunk(chunk)

    def begin_block(self) -> None:
        """Count local updates from W_g, after :meth:`merge` for each local model."""
        before = self._block_starts[0]
        self._block_starts = [self._in_flight] * self._models.number
        self._in_flight = before

    def _keep_(self, update: Tensor, place: slice, start: Tensor, models: int) -> None:
        """Turn local updates into the part of them that :meth:`merge` adds to W_g, in place.

        Args:
            update: sum of the local updates of ``models`` local models.
            place: range of the update.
            start: W_g.
            models: number of local models.

        """
        if self._merge != "progress":
            update.add_(self._block_start[place] - start, alpha=models).mul_(self._merge)

    def write_global(self, chunk: Chunk, participation: Participation, *, pending: bool) -> Stages:
        """See :class:`Bucket`. The update in flight is applied, then the one that is left."""
        place = chunk.parameters
        values, ahead = self._shard.values[place], self.outer.preview(place)
        everything = slice(0, len(values))
        if self.has_update:
            start = self._in_flight[place].clone()
            ahead.apply_(start, everything)
            self._keep_(values, place, start, self._models.number)
        if pending:
            yield from self._exchange.parameters(values, place, participation, keep=False)
            ahead.set_models(participation.effective)
            ahead.apply_(values, everything)
        values.copy_(ahead.vectors["global_model"])
        yield self._shard.distribute(chunk.start, chunk.stop)
        self._shard.write_chunk(chunk)

    def reset_local_model(self) -> None:
        """See :class:`Bucket`. Local updates are counted from the start model."""
        self._block_starts[self._models.current] = self.outer.start_model(slice(None)).clone()
        super().reset_local_model()

    def vectors(self) -> dict[str, Tensor]:
        """State with a value for each parameter of the shard."""
        delayed = {"block_start": self._block_start, "in_flight": self._in_flight}
        return {**super().vectors(), **delayed}

    def continue_(self, older: Bucket) -> None:
        """See :class:`Bucket`."""
        super().continue_(older)
        assert isinstance(older, DelayedBucket)
        self.has_update = older.has_update

    def state(self) -> dict[str, Any]:
        """See :class:`Bucket`. The mean in flight must be complete."""
        return {
            **super().state(),
            "block_start": self._block_start,
            "in_flight": self._in_flight if self.has_update else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See :class:`Bucket`."""
        super().load(state)
        self.load_local(state)
        self.has_update = state["in_flight"] is not None
        if self.has_update:
            self._in_flight.copy_(state["in_flight"])

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Load the block-start weights of the local model in the module."""
        start = state["block_start"].to(self._in_flight, copy=True)
        self._block_starts[self._models.current] = start

    def restart(self, state: Mapping[str, Any]) -> None:
        """See :class:`Bucket`. No update is in flight."""
        super().restart(state)
        self._block_starts = [self._block_start] * self._models.number
