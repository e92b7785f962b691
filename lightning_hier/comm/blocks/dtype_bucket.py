"""The tensors of a block that have one dtype: their global model, and its synchronisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares
from lightning_hier.comm.blocks.averaging import make_codec
from lightning_hier.comm.blocks.block_report import Norms
from lightning_hier.comm.blocks.bucket_mean import BucketMean, BucketSettings
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import Pipeline, Stages


class DtypeBucket:
    """Tensors of one dtype of the model, and averaged state of the local optimizer.

    This rank keeps W and Delta only for its shard of the filtered tensors, and the state of the
    optimizer at the start of the block only for its shard of that.

    Args:
        filtered: tensors to which the block filter applies; their present values are W.
        averaged: tensors that are only averaged.
        carried: state of the local optimizer that is averaged.
        settings: of the block.

    Attributes:
        dtype: of all tensors.
        global_model: this rank's shard of W, flat.
        update: this rank's shard of Delta, flat; None where eta is 0.
        is_all: whether this rank exchanges every element of its group.

    """

    def __init__(
        self,
        filtered: Sequence[Tensor],
        averaged: Sequence[Tensor],
        carried: Sequence[Tensor],
        settings: BucketSettings,
    ) -> None:
        self.dtype = [*filtered, *averaged, *carried][0].dtype
        self._codec = make_codec(settings.across_dtype, self.dtype)
        quantised = self._codec is not None
        self._shard = Shard(filtered, averaged, carried, settings.placement, quantised=quantised)
        self.is_all = self._shard.is_all
        self._local_state = settings.local_state
        self._filter = settings.block_filter
        self._mean = BucketMean(self._shard, self._codec, settings.route)
        values = self._shard.read()
        self.global_model = values[self._shard.filtered].clone()
        self.update = torch.zeros_like(self.global_model) if self._filter.keeps_update else None
        keeps = self._local_state.keeps_previous
        self._previous = values[self._shard.carried].clone() if keeps else None

    def gather(self, *, add: bool = False) -> ModelHealth:
        """Copy this rank's shard of the local model and state into the transfer buffer.

        Where updates are quantised, the buffer gets the local update: the local model minus the
        start model.

        Args:
            add: whether to add to the buffer, which holds another local model of this rank.

        """
        parameters = buffers = optimizer = 0.0
        for piece, values in self._shard.read_in_pieces(into_buffer=not add):
            parameters += self._subtract_start_(values(piece.filtered), piece.filtered)
            buffers += sum_of_squares(values(piece.averaged))
            optimizer += sum_of_squares(values(piece.carried))
            if add:
                whole = slice(piece.start, piece.stop)
                self._shard.values[whole].add_(values(whole))
        return ModelHealth.of_squares(parameters, buffers, optimizer)

    def _subtract_start_(self, model: Tensor, place: slice) -> float:
        """Turn a range of the filtered shard into the values to send; their sum of squares."""
        if self._codec is None:
            return sum_of_squares(model)
        return self._filter.leave_out_start_(model, *self._state_at(place))

    def _state_at(self, place: slice) -> tuple[Tensor, Tensor | None]:
        """W and Delta of a range of the filtered shard."""
        return self.global_model[place], None if self.update is None else self.update[place]

    def synchronise_(self, participation: Participation) -> Norms:
        """Compute W, Delta and the start model of the next block from the gathered values.

        The tensors and the averaged optimizer state get it in place. A collective of the world.
        """
        found = Norms(participation.squares / participation.healthy)
        Pipeline(
            self._synchronise_chunk(chunk, participation, found) for chunk in self._shard.chunks()
        ).run()
        self._shard.write_scattered()
        return found

    def _synchronise_chunk(
        self, chunk: Chunk, participation: Participation, found: Norms
    ) -> Stages:
        yield from self._mean.of_chunk(chunk, participation, keep=True)
        values = self._shard.values
        self._advance_carried_(chunk.carried)
        advance_ = self._filter.advance_by_ if self._codec else self._filter.advance_
        with profiler_range("hier/block/outer_step"):
            mean, update = advance_(values[chunk.filtered], *self._state_at(chunk.filtered))
        found.mean += mean
        found.mean += sum_of_squares(values[chunk.averaged])
        found.update += update
        yield from self._shard.distribute(chunk)

    def write_global_(self, participation: Participation, *, pending: bool) -> None:
        """Write W, and the mean of the other tensors, into the tensors; W and Delta stay.

        A collective of the world.

        Args:
            participation: groups that take part.
            pending: whether to write the W that would result if the block ended here.

        """
        Pipeline(
            self._write_global_chunk(chunk, participation, pending=pending)
            for chunk in self._shard.chunks()
        ).run()
        self._shard.write_scattered(carried=False)

    def _write_global_chunk(
        self, chunk: Chunk, participation: Participation, *, pending: bool
    ) -> Stages:
        if pending:
            yield from self._mean.of_chunk(chunk, participation, keep=False, carried=False)
        else:
            yield from self._mean.exact(chunk.averaged, participation)
        values = self._shard.values[chunk.filtered]
        own, update = self._state_at(chunk.filtered)
        following = self._filter.global_after if self._codec else self._filter.next_global
        values.copy_(following(values, own, update) if pending else own)
        yield from self._shard.distribute(chunk, carried=False)

    def keep_local_update_(self) -> None:
        """Prepare for :meth:`write_` where a rank has several local models."""

    def write_(self) -> None:
        """Write the result of :meth:`synchronise_` into the tensors of another local model."""
        self._shard.write()

    def start_overlap(self, participation: Participation) -> None:
        """Start to average while the next block is trained, if this bucket overlaps."""

    def recall_(self) -> None:
        """Write back W and the optimizer state of the block's start. A collective of the group."""
        self._shard.values[self._shard.filtered].copy_(self.global_model)
        if self._previous is not None:
            self._shard.values[self._shard.carried].copy_(self._previous)
        self._distribute_()

    def vectors(self) -> dict[str, Tensor]:
        """State beside W of every filtered element; it begins at zero."""
        return {} if self.update is None else {"update": self.update}

    def write_vector_(self, name: str) -> None:
        """Write one of :meth:`vectors` into the tensors. A collective of the group."""
        self._shard.values[self._shard.filtered].copy_(self.vectors()[name])
        self._distribute_()

    def read_vector_(self, name: str) -> None:
        """Read one of :meth:`vectors` from the tensors."""
        self.vectors()[name].copy_(self._shard.read()[self._shard.filtered])

    def follow(self, older: DtypeBucket) -> None:
        """Take over state that is not by element from a bucket with fewer tensors."""

    def state(self) -> dict[str, Any]:
        """This rank's shard of the state and its position; the tensors are not copied."""
        return {
            "dtype": str(self.dtype),
            "elements": self._shard.elements,
            "start": min(self._shard.start, self._shard.elements),
            "carried_start": self._shard.carried_start,
            "filter": asdict(self._filter),
            "global_model": self.global_model,
            "update": self.update,
            "previous": self._previous,
            "error_feedback": self._mean.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of a bucket with the same shard."""
        self.global_model.copy_(state["global_model"])
        if self.update is not None and state["update"] is not None:
            self.update.copy_(state["update"])
        if self._previous is not None and state["previous"] is not None:
            self._previous.copy_(state["previous"])
        self._mean.load(state["error_feedback"])

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Load the state of the local model in the module, where a rank has several."""

    def restart_(self, global_model: Tensor, update: Tensor) -> None:
        """Begin a block from W and Delta of a world with other shards.

        Filtered tensors get the start model. The others get those of the rank whose shard holds
        them. A collective of the group.

        Args:
            global_model: W of all filtered tensors, flat.
            update: Delta of all filtered tensors, flat.

        """
        values = self._shard.read()
        own = slice(self._shard.start, self._shard.start + self.global_model.numel())
        self.global_model.copy_(global_model[own])
        if self.update is not None:
            self.update.copy_(update[own])
        start = self._filter.start_model(self.global_model, self.update)
        values[self._shard.filtered].copy_(start)
        self._distribute_(carried=False)

    def _distribute_(self, *, carried: bool = True) -> None:
        chunks = self._shard.chunks()
        Pipeline(self._shard.distribute(chunk, carried=carried) for chunk in chunks).run()
        self._shard.write_scattered(carried=carried)

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
