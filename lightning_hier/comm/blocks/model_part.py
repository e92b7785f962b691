"""The part of a block's model that has one dtype: its state, and how it meets the other groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares
from lightning_hier.comm.blocks.averaging import make_coder
from lightning_hier.comm.blocks.health import Reading, Verdict
from lightning_hier.comm.blocks.part_mean import PartMean
from lightning_hier.comm.blocks.part_settings import PartSettings, Squares
from lightning_hier.comm.blocks.share import Chunk, Share
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.stages import StagedWork, Stages


class ModelPart:
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
        settings: PartSettings,
    ) -> None:
        """Take the present tensors as W and zero as Delta; communicates nothing."""
        example = [*filtered, *averaged, *carried][0]
        self._coder = make_coder(settings.across_dtype, example.dtype)
        shortened = self._coder is not None
        self._share = Share(filtered, averaged, carried, settings.carrier, shortened=shortened)
        self.dtype = self._share.dtype
        self._local_state = settings.local_state
        self._filter = settings.block_filter
        values = self._share.read()
        self._mean = PartMean(self._share, self._coder, settings.route)
        self.global_model = values[self._share.filtered].clone()
        self.update = torch.zeros_like(self.global_model) if self._filter.keeps_update else None
        keeps = self._local_state.keeps_previous
        self._previous = values[self._share.carried].clone() if keeps else None

    def gather(self, *, add: bool = False) -> Reading:
        """Copy this rank's share of the local model and state into the transfer buffer.

        Where models travel in a short form, it is their way from the start model that travels.

        Args:
            add: to what is there already, of another local model of this rank.

        """
        parameters = buffers = optimizer = 0.0
        for piece, values in self._share.read_in_pieces(aside=add):
            parameters += self._leave_out_start_(values(piece.filtered), piece.filtered)
            buffers += sum_of_squares(values(piece.averaged))
            optimizer += sum_of_squares(values(piece.carried))
            if add:
                self._share.values[piece.whole].add_(values(piece.whole))
        return Reading.of_squares(parameters, buffers, optimizer)

    @property
    def carries_all(self) -> bool:
        """Whether no other rank of the group carries anything."""
        return self._share.is_all

    def _leave_out_start_(self, model: Tensor, place: slice) -> float:
        """Turn a stretch of the filtered share into what travels; the sum of its squares."""
        if self._coder is None:
            return sum_of_squares(model)
        return self._filter.leave_out_start_(model, *self._state_at(place))

    def _state_at(self, place: slice) -> tuple[Tensor, Tensor | None]:
        """W and Delta of a stretch of the filtered share."""
        return self.global_model[place], None if self.update is None else self.update[place]

    def synchronise_(self, verdict: Verdict) -> Squares:
        """Turn what was gathered into what the next block starts from; move W and Delta.

        The tensors, and the carried state, get it in place. A collective of the world.
        """
        found = Squares(verdict.squares / verdict.healthy)

        def advance(chunk: Chunk) -> None:
            values = self._share.values
            self._advance_carried_(chunk.carried)
            advance_ = self._filter.advance_by_ if self._coder else self._filter.advance_
            found.add(*advance_(values[chunk.filtered], *self._state_at(chunk.filtered)))
            found.mean += sum_of_squares(values[chunk.averaged])

        self._each_chunk(lambda chunk: self._mean.of_chunk(chunk, verdict, keep=True), advance)
        return found

    def look_(self, verdict: Verdict, *, pending: bool) -> None:
        """Write W into the tensors, and the mean of what is only averaged; W and Delta stay.

        A collective of the world.

        Args:
            verdict: whose models are averaged.
            pending: whether W shall be what it would become if the block ended here.

        """

        def look(chunk: Chunk) -> None:
            mean = self._share.values[chunk.filtered]
            own, update = self._state_at(chunk.filtered)
            following = self._filter.global_after if self._coder else self._filter.next_global
            mean.copy_(following(mean, own, update) if pending else own)

        def average(chunk: Chunk) -> Stages:
            if pending:
                return self._mean.of_chunk(chunk, verdict, keep=False, carried=False)
            return self._mean.exact(chunk.averaged, verdict)

        self._each_chunk(average, look, carried=False)

    def keep_made_(self) -> None:
        """Prepare for :meth:`write_` where a rank has several local models: here nothing."""

    def write_(self) -> None:
        """Write what :meth:`synchronise_` has made into the tensors of another local model."""
        self._share.write()

    def send_off(self, verdict: Verdict) -> None:
        """Have travel what travels while the next block is trained: here nothing."""

    def recall_(self) -> None:
        """Write W, and the state that the block began with, back. A collective of the group."""
        self._share.values[self._share.filtered].copy_(self.global_model)
        if self._previous is not None:
            self._share.values[self._share.carried].copy_(self._previous)
        self._spread_()

    def vectors(self) -> dict[str, Tensor]:
        """What is kept beside W for every filtered element, and begins at zero."""
        return {} if self.update is None else {"update": self.update}

    def show_(self, name: str) -> None:
        """Write one of :meth:`vectors` into the tensors. A collective of the group."""
        self._share.values[self._share.filtered].copy_(self.vectors()[name])
        self._spread_()

    def adopt_(self, name: str) -> None:
        """Take the present tensors as one of :meth:`vectors`."""
        self.vectors()[name].copy_(self._share.read()[self._share.filtered])

    def follow(self, older: ModelPart) -> None:
        """Take over from a part of the same dtype with fewer tensors what is not by element."""

    def state(self) -> dict[str, Any]:
        """This rank's share of the state, and where it begins; the tensors are not copied."""
        return {
            "dtype": str(self.dtype),
            "elements": self._share.elements,
            "start": min(self._share.start, self._share.elements),
            "carried_start": self._share.carried_start,
            "filter": asdict(self._filter),
            "global_model": self.global_model,
            "update": self.update,
            "previous": self._previous,
            "leftovers": self._mean.state(),
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
        self._mean.load(state["leftovers"])

    def restart_(self, global_model: Tensor, update: Tensor) -> None:
        """Begin a block from a model and an update of the whole world, whatever its shares were.

        The tensors get what the block starts from; those that are only averaged, those of the rank
        that carries them. A collective of the group.

        Args:
            global_model: W of all filtered tensors, flat.
            update: Delta of the same.

        """
        values = self._share.read()
        own = slice(*(edge + self._share.start for edge in (0, self.global_model.numel())))
        self.global_model.copy_(global_model[own])
        if self.update is not None:
            self.update.copy_(update[own])
        start = self._filter.start_model(self.global_model, self.update)
        values[self._share.filtered].copy_(start)
        self._spread_(carried=False)

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
            with profiler_range("hier/block/outer_step"):
                reckon(chunk)
            yield from self._share.spread(chunk, carried=carried)

        StagedWork(map(work, self._share.chunks())).finish()
        self._share.write_scattered(carried=carried)

    def _spread_(self, *, carried: bool = True) -> None:
        chunks = self._share.chunks()
        StagedWork(self._share.spread(chunk, carried=carried) for chunk in chunks).finish()
        self._share.write_scattered(carried=carried)

    def _advance_carried_(self, place: slice) -> None:
        first = self._share.carried.start
        for tensor, inside in self._share.carried_pieces(place):
            mean = self._share.values[inside]
            previous = None
            if self._previous is not None:
                previous = self._previous[inside.start - first : inside.stop - first]
            with profiler_range("hier/block/optimizer_state"):
                self._local_state.advance_(tensor, mean, previous)
            if previous is not None:
                previous.copy_(mean)
