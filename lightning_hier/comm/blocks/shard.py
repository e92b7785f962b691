"""A rank's share of a flat model of one dtype: where its elements lie, and the transfer buffer."""

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

# Elements that are exchanged at a time: the network is busy with some while others are reckoned
# with, and each is long enough to be worth a message. Twice as many where they travel in a short
# form, since what is done once for each chunk counts for more then.
CHUNK = 1 << 19

# Elements read at a time: what is done with them next finds them in the cache.
_PIECE = 1 << 17


@dataclass(frozen=True)
class Chunk:
    """A stretch of every rank's share, counted from the start of the share.

    Attributes:
        start: first element.
        stop: first element after it; the share of this rank may end before.
        filtered: what of it lies in this rank's filtered tensors, likewise counted.
        averaged: in those that are only averaged.
        carried: in the state of the local optimizer.

    """

    start: int
    stop: int
    filtered: slice
    averaged: slice
    carried: slice

    @property
    def whole(self) -> slice:
        """All of it."""
        return slice(self.start, self.stop)


Values = Callable[[slice], Tensor]
"""Gives the values of a stretch of the share."""


class Shard:
    """The elements that this rank exchanges with other groups, in order of what becomes of them.

    Tensors of the model come first, of them those that the block filter moves before those that
    are only averaged; then state of the local optimizer that travels along.

    Attributes:
        chunk: elements that are exchanged at a time.
        values: this rank's share of the transfer buffer.
        start: where it begins in the whole.
        filtered: where the three kinds lie in it.
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
        shortened: bool,
    ) -> None:
        """Allocate the transfer buffer; communicates nothing."""
        self._placement = placement
        self.chunk = 2 * CHUNK if shortened else CHUNK
        self._model = FlatView([*filtered, *averaged])
        self._carried = FlatView(carried)
        self._view = FlatView([*filtered, *averaged, *carried])
        example = self._view.tensors[0]
        self._buffer = torch.zeros(
            placement.padded(len(self._view)), dtype=example.dtype, device=example.device
        )
        place = placement.share(len(self._view))
        self.start = place.start
        self.values = self._buffer[place]
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
        """Where this rank's share of what is carried begins in all of that."""
        return max(int(self.start) - len(self._model), 0)

    @property
    def dtype(self) -> torch.dtype:
        """Of all of it."""
        return self._buffer.dtype

    @property
    def averages(self) -> bool:
        """Whether any tensors are only averaged."""
        return len(self._model) > self.elements

    @property
    def is_all(self) -> bool:
        """Whether this rank carries every element."""
        return self.values.numel() >= len(self._view)

    def read(self) -> Tensor:
        """Copy this rank's share of the tensors into the transfer buffer; returns it."""
        self._view.read_(self.start, self.start + self.values.numel(), self.values)
        return self.values

    def read_in_pieces(self, *, aside: bool = False) -> Iterator[tuple[Chunk, Values]]:
        """As :meth:`read`; gives every piece as soon as it has been read, and its values.

        Args:
            aside: leave the transfer buffer as it is; a piece is there until the next one.

        """
        length = min(chunk_length(self.values, _PIECE), self.values.numel())
        spare = self.values.new_empty(length) if aside else None
        for piece in self._stretches(self.values.numel(), max(length, 1)):
            own = self.values[piece.whole] if spare is None else spare[: piece.stop - piece.start]
            self._view.read_(self.start + piece.start, self.start + piece.stop, own)
            yield piece, partial(_inside, own, piece.start)

    def chunks(self) -> Iterator[Chunk]:
        """The whole, a stretch of every rank's share at a time."""
        return self._stretches(self._placement.longest(len(self._view)), self.chunk)

    def write(self) -> None:
        """Copy the whole transfer buffer into the tensors, in place."""
        self._view.write_from(self._buffer)

    def _stretches(self, numel: int, each: int) -> Iterator[Chunk]:
        for start in range(0, numel, each):
            stop = min(start + each, numel)
            kinds = (self.filtered, self.averaged, self.carried)
            yield Chunk(start, stop, *(_common(kind, start, stop) for kind in kinds))

    def carried_pieces(self, place: slice) -> Iterator[tuple[Tensor, slice]]:
        """The carried tensors in a stretch of the share, and where each lies in the share."""
        offset = self.start - len(self._model)
        for tensor, _, inside in self._carried.pieces(place.start + offset, place.stop + offset):
            yield tensor, slice(place.start + inside.start, place.start + inside.stop)

    def distribute(self, chunk: Chunk, *, carried: bool = True) -> Stages:
        """Hand a chunk of all shares round in the group and write it into the tensors, in place.

        A collective of the group, in one stage; afterwards its ranks hold the same bits.

        Args:
            chunk: of :meth:`chunks`.
            carried: False leaves the state of the local optimizer as it is.

        """
        yield self._placement.distribute(self._buffer, chunk.start, chunk.stop)
        view = self._view if carried else self._model
        for span in self._placement.spans(chunk.start, chunk.stop, len(self._view)):
            view.write_range(span.start, min(span.stop, len(view)), self._buffer)

    def write_scattered(self, *, carried: bool = True) -> None:
        """Write what :meth:`spread` could not write chunk by chunk, once all chunks are there."""
        (self._view if carried else self._model).write_scattered(self._buffer)


def _inside(values: Tensor, start: int, place: slice) -> Tensor:
    return values[max(place.start - start, 0) : max(place.stop - start, 0)]


def _common(kind: slice, start: int, stop: int) -> slice:
    low = min(max(kind.start, start), kind.stop)
    return slice(low, max(min(kind.stop, stop), low))
