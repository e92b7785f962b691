"""A dtype bucket of a fragment: its shard, its exchange over the groups and its outer step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from torch import Tensor

from lightning_hier.algorithms.kernels import sum_of_squares
from lightning_hier.algorithms.kernels.reference import SumOfSquares
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.exchange import Exchange
from lightning_hier.comm.blocks.health import Averaging, ModelHealth
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.blocks.shard_placement import Kind
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Stages


class Bucket:
    """Parameters of one dtype, with averaged buffers and state of the local optimizer.

    This rank keeps W and the state of the outer step only for its shard of the parameters, and the
    optimizer state at the start of the block only for its shard of that state.

    A synchronisation calls :meth:`read`, :meth:`synchronise` for each chunk of the shard, and
    :meth:`~lightning_hier.comm.blocks.shard.Shard.write_scattered` of the shard.

    Args:
        shard: shard of this rank; the transfer buffer holds the current values.
        exchange: exchange of the shard.
        outer: outer step, which computes the next W from the mean of the groups.
        local_state: state of the local optimizer.

    Attributes:
        kind: kind of all tensors.
        shard: see above.
        exchange: see above.
        outer: see above.

    """

    def __init__(
        self, shard: Shard, exchange: Exchange, outer: OuterStep, local_state: LocalState
    ) -> None:
        self.shard = shard
        self.exchange = exchange
        self.outer = outer
        self._local_state = local_state
        self.kind: Kind = (str(shard.values.dtype), shard.holders)
        # In the memory of W: on the host if outer steps are offloaded.
        keeps = local_state.keeps_previous
        self._previous = outer.stored(shard.values[shard.carried]) if keeps else None

    def read(self) -> ModelHealth:
        """Copy this rank's shard of the local model and state into the transfer buffer.

        If updates are exchanged, the buffer gets the local update instead of the model.
        """
        squares: list[SumOfSquares] = [0.0, 0.0, 0.0]
        # In pieces, so that each pass finds in the cache what the one before has written.
        for piece, parameters, buffers, carried in self.shard.read_in_pieces():
            squares[0] += self._prepare_(parameters, piece.parameters)
            squares[1] += sum_of_squares(buffers)
            squares[2] += sum_of_squares(carried)
        # Sums over the ranks of a group then count every element once.
        return ModelHealth.of_squares(*(float(total) / self.shard.holders for total in squares))

    def _prepare_(self, model: Tensor, place: slice) -> SumOfSquares:
        """Turn a local model into the values to average, in place. Returns their sum of squares."""
        return self.outer.prepare_(model, place)

    def synchronise(
        self, chunk: Chunk, averaging: Averaging, norms: Norms, *, carried: bool
    ) -> Stages:
        """Average a chunk, take the outer step, and write the start model of the next block.

        Tensors and averaged optimizer state are written in place. Collectives of the world.

        Args:
            chunk: a chunk of the shard.
            averaging: how the groups are averaged.
            norms: sums of squares to which those of the chunk are added.
            carried: whether the state of the local optimizer is averaged.

        """
        means = self.exchange.chunk(chunk, averaging, keep=True, carried=carried)
        return chain(means, self._begin_next_block(chunk, norms, carried=carried))

    def _begin_next_block(self, chunk: Chunk, norms: Norms, *, carried: bool) -> Stages:
        """Take the outer step with the means of a chunk, and write the start model."""
        values, place = self.shard.values, chunk.parameters
        if carried:
            self._advance_carried_(values[self.shard.carried], chunk.carried)
        with profiler_range("hier/block/outer_step"):
            mean, update = self.outer.apply_(values[place], place)
        norms.add(mean, update, holders=self.shard.holders)
        # The squares of local models include their buffers, and so must those of the mean.
        if chunk.buffers.start < chunk.buffers.stop:
            squares = sum_of_squares(values[chunk.buffers])
            norms.add(squares, 0.0, holders=self.shard.holders)
        yield self.shard.distribute(chunk.start, chunk.stop)
        self.shard.write_chunk(chunk, carried=carried)

    def _advance_carried_(self, means: Tensor, place: slice) -> None:
        """Turn a range of the means of this rank's optimizer state into that of the next block."""
        for tensor, inside in self.shard.carried_pieces(place):
            previous = None if self._previous is None else self._previous[inside]
            with profiler_range("hier/block/optimizer_state"):
                before = None if previous is None else previous.to(means.device)
                self._local_state.advance_(tensor, means[inside], before)
            if previous is not None:  # the next block starts from the advanced means
                previous.copy_(means[inside])

    def write_global(self, chunk: Chunk, averaging: Averaging, *, pending: bool) -> Stages:
        """Write W, and the mean of the buffers, of a chunk into the tensors.

        Collectives of the world, after all work in flight. The state of the bucket does not
        change. The tensors that are not contiguous must be written afterwards.

        Args:
            chunk: a chunk of the shard.
            averaging: how the groups are averaged.
            pending: whether to write the W that would result if the block ended now.

        """
        place = chunk.parameters
        if pending:
            yield from self.exchange.chunk(chunk, averaging, keep=False, carried=False)
        else:
            yield from self.exchange.exact(chunk.buffers, averaging)
        # The step is taken by a copy, because an evaluation does not change W and Delta.
        values, ahead = self.shard.values[place], self.outer.preview(place)
        if pending:
            ahead.set_models(averaging.effective)
            ahead.apply_(values, slice(0, len(values)))
        values.copy_(ahead.vectors["global_model"])
        yield self.shard.distribute(chunk.start, chunk.stop)
        self.shard.write_chunk(chunk, carried=False)

    def vectors(self) -> dict[str, Tensor]:
        """State with a value for each parameter of the shard."""
        return self.outer.vectors

    def continue_(self, older: Bucket) -> None:
        """Copy the state of a bucket with fewer tensors. A collective of the group.

        Values of new tensors do not change. Error feedback is discarded, because new tensors move
        the elements to other chunks and ranks.
        """
        shard, old = self.shard, older.shard
        for name, vector in older.vectors().items():
            shard.fill_(self.vectors()[name], shard.parameters, old.whole(vector, old.parameters))
        self.outer.load(older.outer.settings())
        if self._previous is not None and older._previous is not None:
            shard.fill_(self._previous, shard.carried, old.whole(older._previous, old.carried))

    def outer_state(self) -> dict[str, Any]:
        """The part of :meth:`state` from which runs with other shards or settings start."""
        return {"kind": self.kind, **self.outer.state()}

    def state(self) -> dict[str, Any]:
        """This rank's shard of the state and its position, without copying tensors."""
        # A shard behind the parameters contains only buffers and optimizer state.
        return {
            **self.outer_state(),
            "start": min(self.shard.start, self.shard.elements),
            "carried_start": self.shard.carried_start,
            "previous": self._previous,
            "error_feedback": self.exchange.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of a bucket with the same shard."""
        self.outer.load(state)
        # None in a run without block momentum, which may resume with it.
        if self._previous is not None and state["previous"] is not None:
            self._previous.copy_(state["previous"])
        self.exchange.load(state["error_feedback"])

    def restart(self, state: Mapping[str, Any]) -> None:
        """Start a block after a run with other shards or settings. A collective of the group.

        Args:
            state: state of the outer step, whose vectors have a value for each parameter of the
                bucket, from :meth:`~lightning_hier.comm.blocks.outer_step.OuterStep.adopt`.

        """
        start, elements = self.shard.start, self.outer.vectors["global_model"].numel()
        self.outer.begin(state, slice(start, start + elements))
        # The whole shard is read, because buffers are written back with their current values.
        self.shard.read()
        for chunk in self.shard.chunks:
            place = chunk.parameters
            self.shard.values[place].copy_(self.outer.start_model(place))
        self.shard.distribute_all()
        self.shard.write(carried=False)
