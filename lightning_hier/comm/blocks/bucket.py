"""A dtype bucket of a fragment: its shard, its exchange over the groups and its outer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from lightning_hier.algorithms.kernels import sum_of_squares
from lightning_hier.comm.blocks.exchange import Exchange
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Stages


class Bucket:
    """Parameters of one dtype, with averaged buffers and state of the local optimizer.

    This rank keeps W and the state of the outer step only for its shard of the parameters, and the
    optimizer state at the start of the block only for its shard of that state.

    A synchronisation calls :meth:`read`, :meth:`synchronise` for each chunk, :meth:`finish`, and
    :meth:`take_squares`.

    Args:
        shard: shard of this rank; the transfer buffer holds the current values.
        exchange: exchange of the shard.
        outer: outer step, which computes the next W from the mean of the groups.
        local_state: state of the local optimizer.

    Attributes:
        dtype: dtype of all tensors.
        chunks: ranges of the shard that :meth:`synchronise` and :meth:`write_global` process.
        is_all: whether this rank exchanges every element of its group.
        outer: see above.

    """

    def __init__(
        self, shard: Shard, exchange: Exchange, outer: OuterStep, local_state: LocalState
    ) -> None:
        self._shard = shard
        self._exchange = exchange
        self.outer = outer
        self._local_state = local_state
        self.dtype = shard.values.dtype
        self.chunks = shard.chunks
        self.is_all = shard.is_all
        self._squares = [0.0, 0.0]
        self._previous = shard.values[shard.carried].clone() if local_state.keeps_previous else None

    def read(self, *, add: bool = False) -> ModelHealth:
        """Copy this rank's shard of the local model and state into the transfer buffer.

        If updates are exchanged, the buffer gets the local update instead of the model.

        Args:
            add: whether to add to the buffer, which contains another local model of this rank.

        """
        squares = [0.0, 0.0, 0.0]
        for piece, parameters, buffers, carried in self._shard.read_in_pieces(into_buffer=not add):
            squares[0] += self._prepare_(parameters, piece.parameters)
            squares[1] += sum_of_squares(buffers)
            squares[2] += sum_of_squares(carried)
            if add:
                for kind, values in zip(piece[2:], (parameters, buffers, carried), strict=True):
                    self._shard.values[kind].add_(values)
        return ModelHealth.of_squares(*squares)

    def _prepare_(self, model: Tensor, place: slice) -> float:
        """Turn a local model into the values to average, in place. Returns their sum of squares."""
        return self.outer.prepare_(model, place)

    def synchronise(self, chunk: Chunk, participation: Participation, *, carried: bool) -> Stages:
        """Average a chunk, take the outer step, and write the start model of the next block.

        Tensors and averaged optimizer state are written in place. Collectives of the world.

        Args:
            chunk: one of :attr:`chunks`.
            participation: groups that take part.
            carried: whether the state of the local optimizer is averaged.

        """
        values, place = self._shard.values, chunk.parameters
        yield from self._exchange.chunk(chunk, participation, keep=True, carried=carried)
        if carried:
            self._advance_carried_(values[self._shard.carried], chunk.carried)
        with profiler_range("hier/block/outer_step"):
            mean, update = self.outer.apply_(values[place], place)
        self._count(mean + sum_of_squares(values[chunk.buffers]), update)
        yield self._shard.distribute(chunk.start, chunk.stop)
        self._shard.write_chunk(chunk, carried=carried)

    def _count(self, mean: float, update: float) -> None:
        self._squares[0] += mean
        self._squares[1] += update

    def take_squares(self) -> tuple[float, float]:
        """Sums of squares of this rank's shard of the mean and of the global update.

        Those of all chunks since the last call.
        """
        (mean, update), self._squares = self._squares, [0.0, 0.0]
        return mean, update

    def finish(self, *, carried: bool) -> None:
        """Write the tensors that are not contiguous, after all chunks.

        Args:
            carried: whether to write the state of the local optimizer as well.

        """
        self._shard.write_scattered(carried=carried)

    def _advance_carried_(self, means: Tensor, place: slice) -> None:
        """Turn a range of the means of this rank's optimizer state into that of the next block."""
        for tensor, own in self._carried_pieces(place):
            previous = None if self._previous is None else self._previous[own]
            with profiler_range("hier/block/optimizer_state"):
                self._local_state.advance_(tensor, means[own], previous)
            if previous is not None:
                previous.copy_(means[own])

    def _carried_pieces(self, place: slice) -> Iterator[tuple[Tensor, slice]]:
        """Tensors of optimizer state in a range of the shard, and their ranges in the state."""
        for tensor, inside in self._shard.carried_pieces(place):
            yield tensor, self._shard.inside_carried(inside)

    def write_global(self, chunk: Chunk, participation: Participation, *, pending: bool) -> Stages:
        """Write W, and the mean of the buffers, of a chunk into the tensors.

        Collectives of the world, after all work in flight. The state of the bucket does not
        change. :meth:`finish` must follow.

        Args:
            chunk: one of :attr:`chunks`.
            participation: groups that take part.
            pending: whether to write the W that would result if the block ended now.

        """
        place = chunk.parameters
        if pending:
            yield from self._exchange.chunk(chunk, participation, keep=False, carried=False)
        else:
            yield from self._exchange.exact(chunk.buffers, participation)
        values, ahead = self._shard.values[place], self.outer.preview(place)
        if pending:
            ahead.set_models(participation.effective)
            ahead.apply_(values, slice(0, len(values)))
        values.copy_(ahead.vectors["global_model"])
        yield self._shard.distribute(chunk.start, chunk.stop)
        self._shard.write_chunk(chunk, carried=False)

    def write(self, *, carried: bool) -> None:
        """Write the result of :meth:`synchronise` into the tensors of another local model.

        Args:
            carried: as in :meth:`synchronise`.

        """
        self._shard.write(carried=carried)

    @property
    def elements(self) -> int:
        """Number of elements of all parameters."""
        return self._shard.elements

    def vectors(self) -> dict[str, Tensor]:
        """State with a value for each parameter of the shard."""
        return self.outer.vectors

    def continue_(self, older: Bucket) -> None:
        """Copy the state of a bucket with fewer tensors. A collective of the group.

        Values of new tensors do not change. Error feedback is discarded.
        """
        own, old = self._shard, older._shard
        for name, vector in older.vectors().items():
            own.fill_(self.vectors()[name], own.parameters, old.whole(vector, old.parameters))
        self.outer.load(older.outer.settings())
        if self._previous is not None and older._previous is not None:
            own.fill_(self._previous, own.carried, old.whole(older._previous, old.carried))

    def outer_state(self) -> dict[str, Any]:
        """The part of :meth:`state` from which runs with other shards or settings start."""
        elements = self._shard.elements
        return {"dtype": str(self.dtype), "elements": elements, **self.outer.state()}

    def state(self) -> dict[str, Any]:
        """This rank's shard of the state and its position, without copying tensors."""
        return {
            **self.outer_state(),
            "start": min(self._shard.start, self._shard.elements),
            "carried_start": self._shard.carried_start,
            "previous": self._previous,
            "error_feedback": self._exchange.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of a bucket with the same shard."""
        self.outer.load(state)
        if self._previous is not None and state["previous"] is not None:
            self._previous.copy_(state["previous"])
        self._exchange.load(state["error_feedback"])

    def reset_local_model(self) -> None:
        """Write the start model, and the optimizer state that belongs to it, in place.

        Averaged optimizer state becomes that of the last average, or zero if it is not kept.
        Buffers get the values of the rank whose shard contains them. A collective of the group.
        """
        state = self._shard.read()[self._shard.carried]
        if self._previous is None:
            state.zero_()
        else:
            state.copy_(self._previous)
        self._write_start_model(carried=True)

    def _write_start_model(self, *, carried: bool) -> None:
        start = self.outer.start_model(slice(None))
        self._shard.values[self._shard.parameters].copy_(start)
        self._shard.distribute_all()
        self._shard.write(carried=carried)

    def restart(self, state: Mapping[str, Any]) -> None:
        """Start a block after a run with other shards or settings. A collective of the group.

        Args:
            state: state of the outer step, whose vectors have a value for each parameter of the
                bucket, from :meth:`~lightning_hier.comm.blocks.outer_step.OuterStep.adopt`.

        """
        start, elements = self._shard.start, self.outer.vectors["global_model"].numel()
        self.outer.begin(state, slice(start, start + elements))
        self._shard.read()
        self._write_start_model(carried=False)
