"""The part of a block's model that has one dtype: its state, and how it meets the other groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares
from lightning_hier.comm.blocks.averaging import make_codec
from lightning_hier.comm.blocks.bucket_mean import BucketMean
from lightning_hier.comm.blocks.bucket_settings import BucketSettings, Norms
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.stages import Pipeline, Stages


class DtypeBucket:
    """Tensors of one dtype: the model's, then state of the local optimizer that travels with it.

    This rank keeps W and Delta for its share of the filtered tensors alone, and of the carried
    state what the last block started from.

    Attributes:
        dtype: of all tensors.
        global_model: this rank's share of W, flat.
        update: this rank's share of Delta, flat; None where eta is 0.

    """

    def __init__(
        self,
        filtered: Sequence[Tensor],
        averaged: Sequence[Tensor],
        carried: Sequence[Tensor],
        settings: BucketSettings,
    ) -> None:
        """Take the present tensors as W and zero as Delta; communicates nothing."""
        example = [*filtered, *averaged, *carried][0]
        self._codec = make_codec(settings.across_dtype, example.dtype)
        shortened = self._codec is not None
        self._shard = Shard(filtered, averaged, carried, settings.placement, shortened=shortened)
        self.dtype = self._shard.dtype
        self._local_state = settings.local_state
        self._filter = settings.block_filter
        values = self._shard.read()
        self._mean = BucketMean(self._shard, self._codec, settings.route)
        self.global_model = values[self._shard.filtered].clone()
        self.update = torch.zeros_like(self.global_model) if self._filter.keeps_update else None
        keeps = self._local_state.keeps_previous
        self._previous = values[self._shard.carried].clone() if keeps else None

    def gather(self, *, add: bool = False) -> ModelHealth:
        """Copy this rank's share of the local model and state into the transfer buffer.

        Where models travel in a short form, it is their way from the start model that travels.

        Args:
            add: to what is there already, of another local model of this rank.

        """
        parameters = buffers = optimizer = 0.0
        for piece, values in self._shard.read_in_pieces(aside=add):
            parameters += self._leave_out_start_(values(piece.filtered), piece.filtered)
            buffers += sum_of_squares(values(piece.averaged))
            optimizer += sum_of_squares(values(piece.carried))
            if add:
                self._shard.values[piece.whole].add_(values(piece.whole))
        return ModelHealth.of_squares(parameters, buffers, optimizer)

    @property
    def carries_all(self) -> bool:
        """Whether no other rank of the group carries anything."""
        return self._shard.is_all

    def _leave_out_start_(self, model: Tensor, place: slice) -> float:
        """Turn a stretch of the filtered share into what travels; the sum of its squares."""
        if self._codec is None:
            return sum_of_squares(model)
        return self._filter.leave_out_start_(model, *self._state_at(place))

    def _state_at(self, place: slice) -> tuple[Tensor, Tensor | None]:
        """W and Delta of a stretch of the filtered share."""
        return self.global_model[place], None if self.update is None else self.update[place]

    def synchronise_(self, participation: Participation) -> Norms:
        """Turn what was gathered into what the next block starts from; move W and Delta.

        The tensors, and the carried state, get it in place. A collective of the world.
        """
        found = Norms(participation.squares / participation.healthy)

        def advance(chunk: Chunk) -> None:
            values = self._shard.values
            self._advance_carried_(chunk.carried)
            advance_ = self._filter.advance_by_ if self._codec else self._filter.advance_
            found.add(*advance_(values[chunk.filtered], *self._state_at(chunk.filtered)))
            found.mean += sum_of_squares(values[chunk.averaged])

        self._each_chunk(
            lambda chunk: self._mean.of_chunk(chunk, participation, keep=True), advance
        )
        return found

    def look_(self, participation: Participation, *, pending: bool) -> None:
        """Write W into the tensors, and the mean of what is only averaged; W and Delta stay.

        A collective of the world.

        Args:
            participation: whose models are averaged.
            pending: whether W shall be what it would become if the block ended here.

        """

        def look(chunk: Chunk) -> None:
            mean = self._shard.values[chunk.filtered]
            own, update = self._state_at(chunk.filtered)
            following = self._filter.global_after if self._codec else self._filter.next_global
            mean.copy_(following(mean, own, update) if pending else own)

        def average(chunk: Chunk) -> Stages:
            if pending:
                return self._mean.of_chunk(chunk, participation, keep=False, carried=False)
            return self._mean.exact(chunk.averaged, participation)

        self._each_chunk(average, look, carried=False)

    def keep_local_update_(self) -> None:
        """Prepare for :meth:`write_` where a rank has several local models: here nothing."""

    def write_(self) -> None:
        """Write what :meth:`synchronise_` has made into the tensors of another local model."""
        self._shard.write()

    def send_off(self, participation: Participation) -> None:
        """Have travel what travels while the next block is trained: here nothing."""

    def recall_(self) -> None:
        """Write W, and the state that the block began with, back. A collective of the group."""
        self._shard.values[self._shard.filtered].copy_(self.global_model)
        if self._previous is not None:
            self._shard.values[self._shard.carried].copy_(self._previous)
        self._distribute_()

    def vectors(self) -> dict[str, Tensor]:
        """What is kept beside W for every filtered element, and begins at zero."""
        return {} if self.update is None else {"update": self.update}

    def show_(self, name: str) -> None:
        """Write one of :meth:`vectors` into the tensors. A collective of the group."""
        self._shard.values[self._shard.filtered].copy_(self.vectors()[name])
        self._distribute_()

    def adopt_(self, name: str) -> None:
        """Take the present tensors as one of :meth:`vectors`."""
        self.vectors()[name].copy_(self._shard.read()[self._shard.filtered])

    def follow(self, older: DtypeBucket) -> None:
        """Take over from a part of the same dtype with fewer tensors what is not by element."""

    def state(self) -> dict[str, Any]:
        """This rank's share of the state, and where it begins; the tensors are not copied."""
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

    def load_local(self, state: Mapping[str, Any]) -> None:
        """Take over what differs between the local models of a rank, of the present one."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a part with the same share."""
        self.global_model.copy_(state["global_model"])
        if self.update is not None and state["update"] is not None:
            self.update.copy_(state["update"])
        if self._previous is not None and state["previous"] is not None:
            self._previous.copy_(state["previous"])
        self._mean.load(state["error_feedback"])

    def restart_(self, global_model: Tensor, update: Tensor) -> None:
        """Begin a block from a model and an update of the whole world, whatever its shares were.

        The tensors get what the block starts from; those that are only averaged, those of the rank
        that carries them. A collective of the group.

        Args:
            global_model: W of all filtered tensors, flat.
            update: Delta of the same.

        """
        values = self._shard.read()
        own = slice(*(edge + self._shard.start for edge in (0, self.global_model.numel())))
        self.global_model.copy_(global_model[own])
        if self.update is not None:
            self.update.copy_(update[own])
        start = self._filter.start_model(self.global_model, self.update)
        values[self._shard.filtered].copy_(start)
        self._distribute_(carried=False)

    def _each_chunk(
        self,
        average: Callable[[Chunk], Stages],
        reckon: Callable[[Chunk], None],
        *,
        carried: bool = True,
    ) -> None:
        """Average, reckon and hand round, chunk by chunk. A collective of the world."""

        def work(chunk: Chunk) -> Stages:
            yield from average(chunk)
            reckon(chunk)
            yield from self._shard.distribute(chunk, carried=carried)

        Pipeline(map(work, self._shard.chunks())).finish()
        self._shard.write_scattered(carried=carried)

    def _distribute_(self, *, carried: bool = True) -> None:
        chunks = self._shard.chunks()
        Pipeline(self._shard.distribute(chunk, carried=carried) for chunk in chunks).finish()
        self._shard.write_scattered(carried=carried)

    def _advance_carried_(self, place: slice) -> None:
        first = self._shard.carried.start
        for tensor, inside in self._shard.carried_pieces(place):
            mean = self._shard.values[inside]
            previous = None
            if self._previous is not None:
                previous = self._previous[inside.start - first : inside.stop - first]
            self._local_state.advance_(tensor, mean, previous)
            if previous is not None:
                previous.copy_(mean)
