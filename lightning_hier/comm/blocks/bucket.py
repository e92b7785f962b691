"""A dtype bucket of a fragment: its shard, its exchange over the groups and its outer step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.algorithms.squares import SumOfSquares, sum_of_squares
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.exchange import Exchange
from lightning_hier.comm.blocks.health import Averaging, ModelHealth
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import OuterStep
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.blocks.shard_placement import Kind
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.sharded_tensors import local_tensor
from lightning_hier.comm.stages import Scheduled, Stages

Merge = float | Literal["progress"]
"""What becomes of a local model when the start model arrives."""


def given_up(merge: Merge) -> float:
    """Share of the steps in flight that a merge gives up."""
    return 0.0 if merge == "progress" else 1.0 - merge


@dataclass
class InFlight:
    """What a bucket keeps because its updates are applied some steps after they were sent.

    Vectors have a value for each element of this rank's shard of the parameters, or of the state.

    Attributes:
        start: s_k, from which the next local update is counted.
        update: the local update that was sent, then the mean over the groups, then W_g.
        sent_state: state of the local optimizer when it was sent.
        state: state of the local optimizer in flight, then the mean, then that of W_g.

    """

    start: Tensor
    update: Tensor
    sent_state: Tensor
    state: Tensor

    @classmethod
    def of(cls, shard: Shard) -> InFlight:
        """Start from the model and the state in the transfer buffer, with nothing in flight."""
        model, state = shard.values[shard.parameters], shard.values[shard.carried]
        return cls(model.clone(), torch.zeros_like(model), state.clone(), state.clone())


class Bucket:
    """Parameters of one dtype, with averaged buffers and state of the local optimizer.

    The local update of group k is its local model w_k minus its block-start weights s_k::

        u_k = w_k - s_k
        s_k = w_k                     with merge="progress"

    It is sent, and its mean over the groups is applied some steps later: the outer step takes it
    and gives the start model W_g, and::

        w_k = W_g + (w_k - s_k)       with merge="progress"
        w_k = alpha * w_k + (1 - alpha) * W_g         with merge=alpha, streaming_diloco eq. 3
        s_k = W_g

    With ``"progress"``, every step is part of exactly one u_k. With a number, the part of the steps
    in flight that stays in w_k is part of the next u_k. State of the local optimizer is sent with
    the update and merged where it is applied, if its ``local_state`` carries any.

    Without a delay, nothing is kept from the send, ``"progress"`` has no steps to add, and w_k =
    s_k = W_g, as with alpha = 0. The mean is then computed in the transfer buffer, where it stays
    until it is applied, and is that of the models if the outer step takes it from models.

    This rank keeps W and the state of the outer step only for its shard of the parameters, and the
    optimizer state at the start of the block only for its shard of that state.

    A synchronisation calls :meth:`read`, then :meth:`send`, or averages each chunk of the transfer
    buffer before it is applied, then :meth:`apply` for each chunk, and :meth:`begin_block`.

    Args:
        shard: shard of this rank; the transfer buffer holds the current values.
        exchange: exchange of the shard.
        outer: outer step, which computes the next W from the mean of the groups.
        local_state: state of the local optimizer.
        merge: ``"progress"``, which requires a delay, or alpha.
        delayed: whether updates are applied some steps after they were sent, for a shard without
            buffers.

    Attributes:
        kind: kind of all tensors.
        shard, exchange, outer: see above.
        has_update: whether an update was sent and is not applied.

    """

    def __init__(
        self,
        shard: Shard,
        exchange: Exchange,
        outer: OuterStep,
        local_state: LocalState,
        *,
        merge: Merge,
        delayed: bool,
    ) -> None:
        self.shard = shard
        self.exchange = exchange
        self.outer = outer
        self._local_state = local_state
        self.kind: Kind = (str(shard.values.dtype), shard.holders)
        # In the memory of W: on the host if outer steps are offloaded.
        keeps = local_state.keeps_previous
        self._previous = outer.stored(shard.values[shard.carried]) if keeps else None
        self._merge = merge
        self._late = InFlight.of(shard) if delayed else None
        self.has_update = False

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
        if self._late is None:
            return self.outer.prepare_(model, place)
        return sum_of_squares(model.sub_(self._late.start[place]))

    def send(self, averaging: Averaging, *, carried: bool) -> list[Scheduled]:
        """Put the local update, after :meth:`read`, in flight. Does not communicate.

        Args:
            averaging: how the updates are averaged.
            carried: whether the state of the local optimizer is averaged.

        Returns:
            The work on each chunk, which computes the mean over the groups.

        """
        late, shard, exchange = self._late, self.shard, self.exchange
        self.has_update = True
        if late is None:
            chunks = shard.chunks
            return [exchange.chunk(c, averaging, keep=True, carried=carried) for c in chunks]
        # Copied, because evaluations and merges use the transfer buffer meanwhile.
        late.update.copy_(shard.values[shard.parameters])
        # This shard may end before the last chunk, and then does so on all ranks that average it.
        places = [chunk.parameters for chunk in shard.chunks]
        sums = [
            exchange.parameters(late.update[place], place, averaging, keep=True)
            for place in places
            if place.start < place.stop
        ]
        if carried:
            late.state.copy_(shard.values[shard.carried])
            sums += [exchange.carried(p, averaging) for p in late.state.split(shard.chunk)]
        self._keep_sent(late, carried=carried)
        return sums

    def _keep_sent(self, late: InFlight, *, carried: bool) -> None:
        """Keep the weights and the state that were sent, as far as needed."""
        progress = self._merge == "progress"
        if not progress and not carried:
            return
        for piece, parameters, _, state in self.shard.read_in_pieces(into_buffer=False):
            if progress:
                late.start[piece.parameters].copy_(parameters)
            if carried:
                late.sent_state[self.shard.inside_carried(piece.carried)].copy_(state)

    def apply(self, chunk: Chunk, norms: Norms, *, carried: bool) -> Stages:
        """Take the outer step with the means of a chunk, and merge W_g with the local model.

        Tensors and averaged optimizer state are written in place, except for those that are not
        contiguous, which must be written afterwards. A collective of the group.

        Args:
            chunk: a chunk of the shard.
            norms: sums of squares to which those of the chunk are added.
            carried: whether the state of the local optimizer was averaged.

        """
        shard, place, late = self.shard, chunk.parameters, self._late
        means = shard.values[shard.parameters] if late is None else late.update
        if carried:
            self._advance_carried_(chunk.carried)
        with profiler_range("hier/block/outer_step"):
            squares = self.outer.apply_(means[place], place)
        norms.add(*squares, holders=shard.holders)
        # The squares of local models include their buffers, and so must those of the mean.
        if chunk.buffers.start < chunk.buffers.stop:
            norms.add(sum_of_squares(shard.values[chunk.buffers]), 0.0, holders=shard.holders)
        if late is not None or self._merge:
            self._merge_parameters(chunk)
        if late is not None and carried:
            self._merge_carried(late, chunk)
        yield shard.distribute(chunk.start, chunk.stop)
        shard.write_chunk(chunk, carried=carried)

    def _advance_carried_(self, place: slice) -> None:
        """Turn a range of the means of this rank's optimizer state into that of the next block."""
        late, shard = self._late, self.shard
        means = shard.values[shard.carried] if late is None else late.state
        for tensor, inside in shard.carried_pieces(place):
            previous = None if self._previous is None else self._previous[inside]
            with profiler_range("hier/block/optimizer_state"):
                before = None if previous is None else previous.to(means.device)
                self._local_state.advance_(tensor, means[inside], before)
            if previous is not None:  # the next block starts from the advanced means
                previous.copy_(means[inside])

    def _merge_parameters(self, chunk: Chunk) -> None:
        """Merge a chunk of the local model with W_g, in the transfer buffer."""
        shard, place, late = self.shard, chunk.parameters, self._late
        # Without a delay, W_g is in the transfer buffer, where the mean was.
        start = shard.values[place].clone() if late is None else late.update[place]
        values = shard.read_range(place)
        if self._merge == "progress":
            assert late is not None, "only a delay has steps to keep"
            values.sub_(late.start[place])
        else:
            values.sub_(start).mul_(self._merge)
        values.add_(start)

    def _merge_carried(self, late: InFlight, chunk: Chunk) -> None:
        """Merge a chunk of the state of the local optimizer with that of W_g."""
        shard = self.shard
        shard.read_range(chunk.carried)
        values = shard.values[shard.carried]
        for tensor, inside in shard.carried_pieces(chunk.carried):
            with profiler_range("hier/block/optimizer_state"):
                self._local_state.merge_(
                    tensor, values[inside], late.sent_state[inside], late.state[inside]
                )

    def begin_block(self, *, carried: bool) -> None:
        """Write tensors that are not contiguous, and count local updates from W_g from now on."""
        self.shard.write_scattered(carried=carried)
        # Not before the whole local model is merged: its update counts from the old weights. The
        # vectors are exchanged instead of copied.
        if (late := self._late) is not None:
            late.start, late.update = late.update, late.start
        self.has_update = False

    def write_global(self, chunk: Chunk, averaging: Averaging | None, *, pending: bool) -> Stages:
        """Write W, and the mean of the buffers, of a chunk into the tensors.

        An update in flight is applied, then the one that is left. Collectives of the world, after
        all work in flight. The state of the bucket does not change. The tensors that are not
        contiguous must be written afterwards.

        Args:
            chunk: a chunk of the shard.
            averaging: how the groups are averaged. None: buffers keep the values of this group, and
                the block does not end now.
            pending: whether to write the W that would result if the block ended now.

        """
        values = self.shard.values[chunk.parameters]
        late, arrived = self._late, None
        if late is not None and self.has_update and averaging is not None:
            arrived = self._with_update(late, chunk.parameters, values)
        if averaging is not None and pending:
            yield from self.exchange.chunk(chunk, averaging, keep=False, carried=False)
        elif averaging is not None:
            yield from self.exchange.exact(chunk.buffers, averaging)
        # The step is taken by a copy, because an evaluation does not change W and Delta.
        ahead = arrived or self.outer.preview(chunk.parameters)
        if averaging is not None and pending:
            ahead.set_models(averaging.effective)
            ahead.apply_(values, slice(0, len(values)))
        values.copy_(ahead.vectors["global_model"])
        yield self.shard.distribute(chunk.start, chunk.stop)
        self.shard.write_chunk(chunk, carried=False)

    def _with_update(self, late: InFlight, place: slice, values: Tensor) -> OuterStep:
        """A preview with the update in flight, which is complete; ``values`` get what is left."""
        ahead, start = self.outer.preview(place), late.update[place].clone()
        ahead.apply_(start, slice(0, len(start)))
        if self._merge != "progress":
            # w - W_g = (w - s) + (s - W_g), with the s that no send has replaced.
            values.add_(late.start[place] - start).mul_(self._merge)
        return ahead

    @property
    def _vectors(self) -> dict[str, tuple[Tensor, slice]]:
        """Vectors of the state by name, and the range of the shard whose elements they are for."""
        shard, late = self.shard, self._late
        vectors = {name: (v, shard.parameters) for name, v in self.outer.vectors.items()}
        if self._previous is not None:
            vectors["previous"] = self._previous, shard.carried
        if late is not None:
            vectors |= {
                "block_start": (late.start, shard.parameters),
                "in_flight": (late.update, shard.parameters),
                "sent_state": (late.sent_state, shard.carried),
                "state_in_flight": (late.state, shard.carried),
            }
        return vectors

    def state(self, *, carried: bool) -> dict[str, Any]:
        """This rank's shard of the state, without copying tensors.

        The mean in flight must be complete. What has no meaning now is None.

        Args:
            carried: whether it contains state of the local optimizer.

        """
        feedback = self.exchange.feedback
        vectors = {name: vector for name, (vector, _) in self._vectors.items()}
        empty = [] if self.has_update else ["in_flight"]
        if not (self.has_update and carried):
            empty += ["sent_state", "state_in_flight"]
        return {
            "kind": self.kind,
            **dict.fromkeys(["previous", "block_start"]),
            **self.outer.settings(),
            **vectors,
            **dict.fromkeys(empty),
            "error_feedback": None if feedback is None else feedback.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of a bucket with the same shard."""
        self.outer.load(state)
        self.has_update = state["in_flight"] is not None
        for name, (vector, _) in self._vectors.items():
            # None in a run without block momentum, which may resume with it.
            if state.get(name) is not None:
                vector.copy_(state[name])
        feedback = self.exchange.feedback
        if feedback is not None and state["error_feedback"] is not None:
            feedback.load(state["error_feedback"])

    def _fill_(self, name: str, whole: Mapping[Tensor, Tensor]) -> None:
        """Set a vector from values by tensor, in place. Those of other tensors do not change."""
        if name in self._vectors:
            vector, kind = self._vectors[name]
            self.shard.fill_(vector, kind, whole)

    def load_grown(self, older: Bucket) -> None:
        """Load the state of a bucket with fewer tensors. A collective of the group.

        Error feedback stays zero, because new tensors move the elements to other chunks and ranks.
        """
        self.outer.load(older.outer.settings())
        self.has_update = older.has_update
        for name, (vector, kind) in older._vectors.items():
            self._fill_(name, older.shard.whole(vector, kind))

    def load_elsewhere(self, states: Mapping[Parameter, Mapping[str, Any]]) -> None:
        """Start a block after a run with other shards or settings. A collective of the group.

        Args:
            states: state of the outer step of each parameter in that run, see
                :meth:`~lightning_hier.comm.blocks.model_block.ModelBlock.load_elsewhere`.

        """
        converted = {
            parameter: self.outer.converted(state, local_tensor(parameter).reshape(-1).cpu())
            for parameter, state in states.items()
        }
        # State that is the same for all elements, such as a step count, is that of the last
        # fragment that has any: later ones may not have been synchronised yet.
        common = [one["common"] for one in converted.values() if one["common"] is not None]
        self.outer.load({"common": common[-1] if common else None})
        for name in self.outer.vectors:
            self._fill_(name, {parameter: one[name] for parameter, one in converted.items()})
        # The whole shard is read, because buffers are written back with their current values.
        self.shard.read()
        for chunk in self.shard.chunks:
            place = chunk.parameters
            self.shard.values[place].copy_(self.outer.start_model(place))
        if self._late is not None:
            self._late.start.copy_(self.shard.values[self.shard.parameters])
        self.shard.distribute_all()
        self.shard.write(carried=False)
