"""A dtype bucket whose mean local update is computed while training continues (overlap)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.reference import SumOfSquares
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.bucket import Bucket
from lightning_hier.comm.blocks.exchange import Exchange
from lightning_hier.comm.blocks.health import Averaging
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Stages

Merge = float | Literal["progress"]
"""What becomes of the steps that a rank makes while an update is in flight."""


def given_up(merge: Merge) -> float:
    """Share of the steps in flight that a merge gives up."""
    return 0.0 if merge == "progress" else 1.0 - merge


class DelayedBucket(Bucket):
    """Parameters of one dtype, whose mean local update is applied some steps after it was sent.

    The local update of group k is its local model w_k minus its block-start weights s_k. At a send
    (:meth:`send`)::

        u_k = w_k - s_k
        s_k = w_k                     with merge="progress"

    and the mean of u_k over the groups is computed during the next steps. Where it is applied
    (:meth:`advance`, then :meth:`merge`), the outer step takes it and gives
    the start model W_g, and::

        w_k = W_g + (w_k - s_k)       with merge="progress"
        w_k = alpha * w_k + (1 - alpha) * W_g         with merge=alpha, streaming_diloco eq. 3
        s_k = W_g

    With ``"progress"``, every step is part of exactly one u_k. With a number, the part of the steps
    in flight that stays in w_k is part of the next u_k.

    This rank keeps its shard of s_k and of the update in flight. State of the local optimizer is
    sent with the update and merged where it is applied, if its ``local_state`` carries any: this
    rank then keeps its shard of the state in flight, and of that which it has sent.

    Args:
        shard: as in :class:`Bucket`, without buffers.
        exchange: as in :class:`Bucket`.
        outer: as in :class:`Bucket`.
        local_state: as in :class:`Bucket`.
        merge: ``"progress"`` or alpha in [0, 1].

    Attributes:
        has_update: whether an update is in flight.
        carries: whether the last update was sent with state of the local optimizer.

    """

    def __init__(
        self,
        shard: Shard,
        exchange: Exchange,
        outer: OuterStep,
        local_state: LocalState,
        *,
        merge: Merge,
    ) -> None:
        super().__init__(shard, exchange, outer, local_state)
        self._merge = merge
        model = shard.values[shard.parameters]  # W, on the device of the model
        self._block_start = model.clone()
        self._in_flight = torch.zeros_like(model)
        state = shard.values[shard.carried]
        self._sent_state = state.clone()
        self._state_in_flight = state.clone()
        self.has_update = self.carries = False

    def _prepare_(self, model: Tensor, place: slice) -> SumOfSquares:
        """See :class:`Bucket`. The values to average are the local update."""
        start = self._block_start[place]
        return kernels_for(model, start).subtract_start_(model, start, None, 0.0)

    def send(self, averaging: Averaging, *, carried: bool) -> tuple[list[Stages], int]:
        """Put the local update, after :meth:`read`, in flight. Does not communicate.

        Args:
            averaging: how the updates are averaged.
            carried: whether the state of the local optimizer is averaged.

        Returns:
            The stages of each chunk, which compute the mean over the groups, and the number of
            :class:`~lightning_hier.comm.stages.Due` that they yield.

        """
        values, exchange = self.shard.values, self.exchange
        # Copied, because evaluations and merges use the transfer buffer meanwhile.
        self._in_flight.copy_(values[self.shard.parameters])
        self.has_update, self.carries = True, carried
        self.outer.set_models(averaging.effective)
        self._keep_sent(progress=self._merge == "progress")
        # This shard may end before the last chunk, and then does so on all ranks that average it.
        places = [chunk.parameters for chunk in self.shard.chunks]
        sums = [
            exchange.parameters(self._in_flight[place], place, averaging, keep=True)
            for place in places
            if place.start < place.stop
        ]
        due = exchange.due * len(sums)
        if carried:
            self._state_in_flight.copy_(values[self.shard.carried])
            # An empty tensor splits into one empty piece, which yields no Due.
            pieces = [p for p in self._state_in_flight.split(self.shard.chunk) if p.numel()]
            sums += [exchange.carried(piece, averaging) for piece in pieces]
            due += exchange.carried_due * len(pieces)
        return sums, due

    def _keep_sent(self, *, progress: bool) -> None:
        """Keep the weights and the state that were sent, as far as needed."""
        if not progress and not self.carries:
            return
        for piece, parameters, _, state in self.shard.read_in_pieces(into_buffer=False):
            if progress:
                self._block_start[piece.parameters].copy_(parameters)
            if self.carries:
                self._sent_state[self.shard.inside_carried(piece.carried)].copy_(state)

    def advance(self, norms: Norms) -> None:
        """Take the outer step with the mean in flight, which becomes W_g, in place.

        The mean of the optimizer state becomes that of the start model.

        Args:
            norms: sums of squares to which those of the bucket are added.

        """
        self.has_update = False
        for chunk in self.shard.chunks:
            with profiler_range("hier/block/outer_step"):
                squares = self.outer.apply_(self._in_flight[chunk.parameters], chunk.parameters)
            norms.add(*squares, holders=self.shard.holders)
            if self.carries:
                self._advance_carried_(self._state_in_flight, chunk.carried)

    def merge(self, chunk: Chunk) -> Stages:
        """Merge the local model with W_g, after :meth:`advance`.

        A collective of the group. The tensors that are not contiguous must be written afterwards.
        """
        place, values = chunk.parameters, self.shard.read_range(chunk.parameters)
        self._prepare_(values, place)
        start = self._in_flight[place]
        self._keep_(values, place, start)
        values.add_(start)
        if self.carries:
            self._merge_carried_(chunk.carried)
        yield self.shard.distribute(chunk.start, chunk.stop)
        self.shard.write_chunk(chunk, carried=self.carries)

    def _merge_carried_(self, place: slice) -> None:
        """Merge a range of the optimizer state."""
        self.shard.read_range(place)
        values = self.shard.values[self.shard.carried]
        sent, start = self._sent_state, self._state_in_flight
        for tensor, inside in self.shard.carried_pieces(place):
            with profiler_range("hier/block/optimizer_state"):
                self._local_state.merge_(tensor, values[inside], sent[inside], start[inside])

    def begin_block(self) -> None:
        """Count local updates from W_g, after :meth:`merge`."""
        # The buffers are exchanged instead of copied: _in_flight contains W_g.
        self._block_start, self._in_flight = self._in_flight, self._block_start

    def _keep_(self, update: Tensor, place: slice, start: Tensor) -> None:
        """Turn the local update into the part of it that :meth:`merge` adds to W_g, in place.

        Args:
            update: local update.
            place: range of the update.
            start: W_g.

        """
        if self._merge != "progress":
            # w - W_g = (w - s) + (s - W_g), with the s that no send has replaced.
            update.add_(self._block_start[place] - start).mul_(self._merge)

    def write_global(self, chunk: Chunk, averaging: Averaging, *, pending: bool) -> Stages:
        """See :class:`Bucket`. The update in flight is applied, then the one that is left."""
        place = chunk.parameters
        values, ahead = self.shard.values[place], self.outer.preview(place)
        everything = slice(0, len(values))
        if self.has_update:  # complete, because the exchanges in flight were finished
            start = self._in_flight[place].clone()
            ahead.apply_(start, everything)
            self._keep_(values, place, start)
        if pending:
            yield from self.exchange.parameters(values, place, averaging, keep=False)
            ahead.set_models(averaging.effective)
            ahead.apply_(values, everything)
        values.copy_(ahead.vectors["global_model"])
        yield self.shard.distribute(chunk.start, chunk.stop)
        self.shard.write_chunk(chunk, carried=False)

    def vectors(self) -> dict[str, Tensor]:
        """State with a value for each parameter of the shard."""
        delayed = {"block_start": self._block_start, "in_flight": self._in_flight}
        return {**super().vectors(), **delayed}

    def continue_(self, older: Bucket) -> None:
        """See :class:`Bucket`."""
        super().continue_(older)
        assert isinstance(older, DelayedBucket)
        self.has_update, self.carries = older.has_update, older.carries
        if self.carries:
            shard, old = self.shard, older.shard
            for new, state in (
                (self._state_in_flight, older._state_in_flight),
                (self._sent_state, older._sent_state),
            ):
                shard.fill_(new, shard.carried, old.whole(state, old.carried))

    def outer_state(self) -> dict[str, Any]:
        """See :class:`Bucket`. The mean in flight must be complete."""
        in_flight = self._in_flight if self.has_update else None
        return {**super().outer_state(), "in_flight": in_flight}

    def state(self) -> dict[str, Any]:
        """See :class:`Bucket`. The mean in flight must be complete."""
        carries = self.has_update and self.carries
        return {
            **super().state(),
            "block_start": self._block_start,
            "sent_state": self._sent_state if carries else None,
            "state_in_flight": self._state_in_flight if carries else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See :class:`Bucket`."""
        super().load(state)
        self._block_start = state["block_start"].to(self._in_flight, copy=True)
        if state["sent_state"] is not None:
            self._sent_state.copy_(state["sent_state"])
        # Without an update, the vectors in flight have no meaning and are not saved.
        self.has_update = state["in_flight"] is not None
        if self.has_update:
            self._in_flight.copy_(state["in_flight"])
        self.carries = state["state_in_flight"] is not None
        if self.carries:
            self._state_in_flight.copy_(state["state_in_flight"])

    def restart(self, state: Mapping[str, Any]) -> None:
        """See :class:`Bucket`. No update is in flight."""
        super().restart(state)
        self._block_start = self._start_model()

    def _start_model(self) -> Tensor:
        """A copy of W_g, which may be a view of W."""
        start = torch.empty_like(self._in_flight)
        for chunk in self.shard.chunks:  # an offloaded step is copied to the device by chunks
            start[chunk.parameters].copy_(self.outer.start_model(chunk.parameters))
        return start
