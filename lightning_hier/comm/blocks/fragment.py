"""A fragment of the model: its global model, and its synchronisation over the groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import sum_of_squares
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.delay import Delay
from lightning_hier.comm.blocks.exchange import Exchange
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Stages


class Fragment:
    """Parameters of one dtype, with averaged buffers and state of the local optimizer.

    This rank keeps W and the state of the outer step only for its shard of the parameters, and the
    optimizer state at the start of the block only for its shard of that state.

    A synchronisation calls :meth:`read`, :meth:`begin`, :meth:`synchronise` for each chunk, and
    :meth:`finish`.

    Args:
        shard: shard of this rank; the transfer buffer holds the current values.
        exchange: exchange of the shard.
        outer: outer step, which computes the next W from the mean of the groups.
        local_state: state of the local optimizer.
        delay: delay of the mean; None applies it at once.

    Attributes:
        dtype: dtype of all tensors.
        chunks: ranges of the shard that :meth:`synchronise` and :meth:`write_global` process.
        is_all: whether this rank exchanges every element of its group.

    """

    def __init__(
        self,
        shard: Shard,
        exchange: Exchange,
        outer: OuterStep,
        local_state: LocalState,
        delay: Delay | None,
    ) -> None:
        self._shard = shard
        self._exchange = exchange
        self._outer = outer
        self._local_state = local_state
        self._delay = delay
        self.dtype = shard.values.dtype
        self.chunks = shard.chunks
        self.is_all = shard.is_all
        self._previous = shard.values[shard.carried].clone() if local_state.keeps_previous else None
        # Norms of the mean that is applied now, and of the models that are averaged now. They
        # differ only with a delay.
        self._applied = self._averaged = Norms(0.0)

    def read(self, *, add: bool = False) -> ModelHealth:
        """Copy this rank's shard of the local model and state into the transfer buffer.

        If updates are exchanged, the buffer gets the local update instead of the model.

        Args:
            add: whether to add to the buffer, which contains another local model of this rank.

        """
        source, squares = self._delay or self._outer, [0.0, 0.0, 0.0]
        for piece, parameters, buffers, carried in self._shard.read_in_pieces(into_buffer=not add):
            squares[0] += source.prepare_(parameters, piece.parameters)
            squares[1] += sum_of_squares(buffers)
            squares[2] += sum_of_squares(carried)
            if add:
                for kind, values in zip(piece[2:], (parameters, buffers, carried), strict=True):
                    self._shard.values[kind].add_(values)
        return ModelHealth.of_squares(*squares)

    def begin(self, participation: Participation) -> None:
        """Wait for the mean in flight that :meth:`synchronise` applies."""
        self._averaged = Norms(participation.squares / participation.healthy)
        self._applied = self._averaged
        if self._delay is not None:
            # Buffers use the same process groups.
            self._delay.wait(everything=self._shard.has_buffers)
            self._applied, self._delay.norms = self._delay.norms, self._averaged

    def synchronise(self, chunk: Chunk, participation: Participation) -> Stages:
        """Average a chunk, take the outer step, and write the start model of the next block.

        Tensors and averaged optimizer state are written in place. Collectives of the world.
        """
        values, place = self._shard.values, chunk.parameters
        if self._delay is None:
            yield from self._exchange.chunk(chunk, participation, keep=True)
            self._advance_carried_(chunk.carried)
        else:
            yield from self._exchange.exact(chunk.buffers, participation)
        with profiler_range("hier/block/outer_step"):
            if self._delay is None:
                mean, update = self._outer.apply_(values[place], place)
            else:
                mean, update = self._delay.apply_(
                    values[place], place, takes_part=participation.takes_part
                )
        self._applied.mean += mean
        self._applied.update += update
        self._averaged.mean += sum_of_squares(values[chunk.buffers])
        yield self._shard.distribute(chunk.start, chunk.stop)
        self._shard.write_chunk(chunk)

    def finish(self, participation: Participation) -> Norms:
        """Start the delayed mean, if there is one. Returns norms of the mean that was applied."""
        self._shard.write_scattered()
        if self._delay is not None:
            exchange, in_flight = self._exchange, self._delay.in_flight
            places = [chunk.parameters for chunk in self.chunks]
            means = (
                exchange.parameters(in_flight[place], place, participation, keep=True)
                for place in places
            )
            self._delay.start(means, exchange.due * len(places))
        return self._applied

    def _advance_carried_(self, place: slice) -> None:
        first = self._shard.carried.start
        for tensor, inside in self._shard.carried_pieces(place):
            mean = self._shard.values[inside]
            previous = None
            if self._previous is not None:
                previous = self._previous[inside.start - first : inside.stop - first]
            with profiler_range("hier/block/optimizer_state"):
                self._local_state.advance_(tensor, mean, previous)
            if previous is not None:
                previous.copy_(mean)

    def write_global(self, chunk: Chunk, participation: Participation, *, pending: bool) -> Stages:
        """Write W, and the mean of the buffers, of a chunk into the tensors.

        Collectives of the world, after all work in flight. The state of the fragment does not
        change. :meth:`finish_global` must follow.

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
        values = self._shard.values[place]
        earlier = None if self._delay is None else self._delay.arrived(place)
        values.copy_(self._outer.global_after(place, values if pending else None, earlier))
        yield self._shard.distribute(chunk.start, chunk.stop)
        self._shard.write_chunk(chunk, carried=False)

    def finish_global(self) -> None:
        """Write the tensors that are not contiguous."""
        self._shard.write_scattered(carried=False)

    def keep_local_update_(self) -> None:
        """Keep the update of the local model in the module until :meth:`write_`."""
        if self._delay is None:
            return
        update = torch.empty_like(self._delay.block_start)
        for piece, parameters, _, _ in self._shard.read_in_pieces(into_buffer=False):
            self._delay.prepare_(parameters, piece.parameters)
            update[piece.parameters].copy_(parameters)
        self._delay.block_start = update

    def write_(self) -> None:
        """Write the result of :meth:`synchronise` into the tensors of another local model."""
        if self._delay is not None:
            self._shard.values[self._shard.parameters].copy_(self._delay.block_start)
        self._shard.write()

    def _vectors(self) -> dict[str, Tensor]:
        """State with a value for each parameter of the shard."""
        return {**self._outer.vectors, **(self._delay.vectors if self._delay else {})}

    def continue_(self, older: Fragment) -> None:
        """Copy the state of a fragment with fewer tensors. A collective of the group.

        Values of new tensors do not change. Error feedback is discarded.
        """
        own, old = self._shard, older._shard
        for name, vector in older._vectors().items():
            own.fill_(self._vectors()[name], own.parameters, old.whole(vector, old.parameters))
        self._outer.load(older._outer.settings())
        if self._previous is not None and older._previous is not None:
            own.fill_(self._previous, own.carried, old.whole(older._previous, old.carried))
        if self._delay is not None and older._delay is not None:
            self._delay.has_update = older._delay.has_update
            self._delay.norms = older._delay.norms

    def state(self) -> dict[str, Any]:
        """This rank's shard of the state and its position, without copying tensors."""
        return {
            "dtype": str(self.dtype),
            "elements": self._shard.elements,
            "start": min(self._shard.start, self._shard.elements),
            "carried_start": self._shard.carried_start,
            **self._outer.state(),
            "previous": self._previous,
            "error_feedback": self._exchange.state(),
            **(self._delay.state() if self._delay else {}),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of a fragment with the same shard."""
        self._outer.load(state)
        if self._previous is not None and state["previous"] is not None:
            self._previous.copy_(state["previous"])
        self._exchange.load(state["error_feedback"])
        if self._delay is not None:
            self._delay.load(state)

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Load the state of the local model in the module, if a rank has several."""
        if self._delay is not None:
            self._delay.load_local(state)

    def restart(self, saved: Mapping[str, Any], model: Tensor, *, pending: bool) -> None:
        """Start a block after a run with other shards or settings.

        Parameters get the start model. Buffers get the values of the rank whose shard contains
        them. A collective of the group. Arguments are those of
        :meth:`~lightning_hier.comm.blocks.outer_step.OuterStep.adopt`.
        """
        values, start = self._shard.read(), self._shard.start
        elements = self._outer.vectors["global_model"].numel()
        state = self._outer.adopt(saved, model, pending=pending)
        self._outer.begin(state, slice(start, start + elements))
        values[self._shard.parameters].copy_(self._outer.start_model(slice(None)))
        if self._delay is not None:
            self._delay.restart()
        self._shard.distribute_all()
        self._shard.write(carried=False)
