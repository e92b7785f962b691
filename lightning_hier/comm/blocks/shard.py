"""A rank's shard of a flat model of one dtype, and the transfer buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunk_length
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.flat import FlatView
from lightning_hier.comm.stages import Stages

# Elements of one chunk: the network transfers some while others are computed, and each is long
# enough to be worth a message. Quantised chunks are twice as long, since the fixed cost of a chunk
# counts for more there.
CHUNK = 1 << 19

# Elements read at a time: the next operation finds them in the cache.
_PIECE = 1 << 17


@dataclass(frozen=True)
class Chunk:
    """A range of elements of every rank's shard, counted from the start of the shard.

    Attributes:
        start: first element.
        stop: first element after it; the shard of this rank may end before.
        filtered: range of the filtered tensors in it, on this rank.
        averaged: range of the tensors that are only averaged.
        carried: range of the state of the local optimizer.

    """

    start: int
    stop: int
    filtered: slice
    averaged: slice
    carried: slice


Values = Callable[[slice], Tensor]
"""Values of a range of the shard."""


class Shard:
    """Elements that this rank exchanges with other groups.

    Filtered tensors come first (the block filter applies to them), then tensors that are only
    averaged, then state of the local optimizer.

    Args:
        filtered: tensors of one dtype.
        averaged: likewise.
        carried: likewise.
        placement: division among the ranks of the group.
        quantised: whether updates are quantised.

    Attributes:
        chunk: elements of one chunk.
        values: this rank's shard of the transfer buffer.
        start: its position in the flat model.
        is_all: whether this rank exchanges every element.
        elements: number of filtered elements of the whole model.
        filtered: range of filtered elements in the shard.
        averaged: likewise.
        carried: likewise.

    """

    def __init__(
        self,
        filtered: Sequence[Tensor],
        averaged: Sequence[Tensor],
        carried: Sequence[Tensor],
        placement: ShardPlacement,
        *,
        quantised: bool,
    ) -> None:
        self._placement = placement
        self.chunk = 2 * CHUNK if quantised else CHUNK
        self._model = FlatView([*filtered, *averaged])
        self._carried = FlatView(carried)
        self._view = FlatView([*filtered, *averaged, *carried])
        example = self._view.tensors[0]
        self._buffer = torch.zeros(
            placement.padded(len(self._view)), dtype=example.dtype, device=example.device
        )
        place = placement.shard(len(self._view))
        self.start = place.start
        self.values = self._buffer[place]
        self.is_all = self.values.numel() >= len(self._view)
        self.elements = len(FlatView(filtered))
        self.filtered = self._own(0, self.elements)
        self.averaged = self._own(self.elements, len(self._model))
        self.carried = self._own(len(self._model), len(self._view))

    def _own(self, start: int, stop: int) -> slice:
        size = self.values.numel()
        low, high = (min(max(edge - self.start, 0), size) for edge in (start, stop))
        return slice(low, high)

    @property
    def carried_start(self) -> int:
        """Position of this rank's optimizer state in all of it."""
        return max(int(self.start) - len(self._model), 0)

    @property
    def dtype(self) -> torch.dtype:
        """Of all tensors."""
        return self._buffer.dtype

    @property
    def averages(self) -> bool:
        """Whether any tensors are only averaged."""
        return len(self._model) > self.elements

    def read(self) -> Tensor:
        """Copy this rank's shard of the tensors into the transfer buffer; returns it."""
        self._view.read_(self.start, self.start + self.values.numel(), self.values)
        return self.values

    def read_in_pieces(self, *, into_buffer: bool = True) -> Iterator[tuple[Chunk, Values]]:
        """Read the shard of the tensors piece by piece, each with its values.

        Args:
            into_buffer: whether the pieces are copied into the transfer buffer. Otherwise a piece
                is valid until the next one.

        """
        length = min(chunk_length(self.values, _PIECE), self.values.numel())
        spare = None if into_buffer else self.values.new_empty(length)
        for piece in self._ranges(self.values.numel(), max(length, 1)):
            start, stop = piece.start, piece.stop
            own = self.values[start:stop] if spare is None else spare[: stop - start]
            self._view.read_(self.start + start, self.start + stop, own)
            yield piece, partial(_inside, own, start)

    def chunks(self) -> list[Chunk]:
        """Chunks of the whole model, each a range of every rank's shard."""
        return list(self._ranges(self._placement.longest(len(self._view)), self.chunk))

    def _ranges(self, numel: int, each: int) -> Iterator[Chunk]:
        for start in range(0, numel, each):
            stop = min(start + each, numel)
            kinds = (self.filtered, self.averaged, self.carried)
            yield Chunk(start, stop, *(_overlap(kind, start, stop) for kind in kinds))

    def carried_pieces(self, place: slice) -> Iterator[tuple[Tensor, slice]]:
        """Tensors of optimizer state in a range of the shard, and the range of each."""
        offset = self.start - len(self._model)
        for tensor, _, inside in self._carried.pieces(place.start + offset, place.stop + offset):
            yield tensor, slice(place.start + inside.start, place.start + inside.stop)

    def distribute(self, chunk: Chunk, *, carried: bool = True) -> Stages:
        """All-gather, or broadcast, a chunk in the group and write it into the tensors, in place.

        A collective of the group in one stage; afterwards its ranks hold the same bits.

        Args:
            chunk: one of :meth:`chunks`.
            carried: whether the state of the local optimizer is written too.

        """
        yield self._placement.distribute(self._buffer, chunk.start, chunk.stop)
        view = self._view if carried else self._model
        for span in self._placement.spans(chunk.start, chunk.stop, len(self._view)):
            view.write_range(span.start, min(span.stop, len(view)), self._buffer)

    def write(self) -> None:
        """Copy the whole transfer buffer into the tensors, in place."""
        self._view.write_from(self._buffer)

    def write_scattered(self, *, carried: bool = True) -> None:
        """Write the tensors that are not contiguous, after all chunks are distributed."""
        (self._view if carried else self._model).write_scattered(self._buffer)


def _inside(values: Tensor, start: int, place: slice) -> Tensor:
    return values[max(place.start - start, 0) : max(place.stop - start, 0)]


def _overlap(kind: slice, start: int, stop: int) -> slice:
    low = min(max(kind.start, start), kind.stop)
    return slice(low, max(min(kind.stop, stop), low))
