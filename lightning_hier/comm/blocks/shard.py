"""Shard of a rank in the flat tensors of a fragment, and the transfer buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunk_length
from lightning_hier.comm.blocks.shard_placement import ShardPlacement
from lightning_hier.comm.channel import Pending
from lightning_hier.comm.flat import FlatView
from lightning_hier.comm.sharded_tensors import local_tensor

# Elements that are read at a time, so that the next operation finds them in the cache.
_PIECE = 1 << 17

# Kind of the devices on which a transfer buffer is kept between two synchronisations.
_KEPT_ON = "cpu"


class Chunk(NamedTuple):
    """A range of elements of every rank's shard, counted from the start of the shard.

    Attributes:
        start: first element.
        stop: first element after it; the shard of this rank may end before.
        parameters: range of the parameters in it, on this rank.
        buffers: range of the buffers.
        carried: range of the state of the local optimizer.

    """

    start: int
    stop: int
    parameters: slice
    buffers: slice
    carried: slice


class Shard:
    """Elements that this rank exchanges with other groups.

    Parameters come first (the outer step applies to them), then buffers that are only averaged,
    then state of the local optimizer.

    Args:
        parameters: tensors of one dtype, of which equally many ranks exchange each element.
        buffers: averaged buffers of the same kind.
        carried: averaged optimizer state of the same kind.
        placement: division among the ranks of the group.
        chunk: number of elements in a chunk.

    Attributes:
        chunk: see above.
        chunks: chunks of the fragment. Each is a range of every rank's shard.
        start: position of the shard in the flat tensors.
        is_all: whether this rank exchanges every element.
        holders: number of ranks of the group that exchange the elements of this shard.
        elements: number of elements of all parameters.
        parameters: range of the parameters in the shard.
        buffers: range of the buffers.
        carried: range of the optimizer state.

    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        carried: Sequence[Tensor],
        placement: ShardPlacement,
        *,
        chunk: int,
    ) -> None:
        self._placement = placement
        # The first part of `_view`, so that a write can leave out the optimizer state.
        self._model = FlatView([*parameters, *buffers])
        self._carried = FlatView(carried)
        self._view = FlatView([*parameters, *buffers, *carried])
        numel, example = len(self._view), self._view.tensors[0]
        self.chunk = chunk
        self.holders = placement.holders(example)
        self._padded = placement.padded(numel)
        self._options: Any = {"dtype": example.dtype, "device": example.device}
        self._allocated: Tensor | None = None
        self._place = placement.shard(numel)
        self.start: int = self._place.start
        length = self._place.stop - self._place.start
        self.is_all = length >= numel
        self.elements = len(FlatView(parameters))
        edges = (0, self.elements, len(self._model), numel)
        self.parameters, self.buffers, self.carried = (
            slice(*(min(max(edge - self.start, 0), length) for edge in pair))
            for pair in zip(edges, edges[1:], strict=False)
        )
        self._starts = placement.starts(numel)
        self._longest = placement.longest(numel)
        # Also on ranks with a shorter shard, because a group distributes each chunk together.
        self.chunks = self._ranges(self._longest, self.chunk)
        # At least 1, also for an empty shard, because it is the step of a range.
        self._piece = max(min(chunk_length(example, _PIECE), length), 1)
        self._pieces = self._ranges(length, self._piece)

    @property
    def _buffer(self) -> Tensor:
        """The transfer buffer, with zeros where nothing has been written since it was allocated."""
        if self._allocated is None:
            self._allocated = torch.zeros(self._padded, **self._options)
        return self._allocated

    @property
    def values(self) -> Tensor:
        """This rank's shard of the transfer buffer."""
        return self._buffer[self._place]

    def release(self) -> None:
        """Free the transfer buffer until it is needed again, if it is in the memory of a device.

        The forward and backward passes between two synchronisations can then use this memory. On
        the host, it is kept, because fresh memory costs more there than a copy.
        """
        if self._options["device"].type != _KEPT_ON:
            self._allocated = None

    def read(self) -> Tensor:
        """Copy this rank's shard of the tensors into the transfer buffer, and return it."""
        self._view.read_(self.start, self.start + self.values.numel(), self.values)
        return self.values

    def read_range(self, place: slice) -> Tensor:
        """Copy a range of the shard into the transfer buffer, and return it."""
        values = self.values[place]
        self._view.read_(self.start + place.start, self.start + place.stop, values)
        return values

    def read_in_pieces(
        self, *, into_buffer: bool = True
    ) -> Iterator[tuple[Chunk, Tensor, Tensor, Tensor]]:
        """Read the shard of the tensors piece by piece: parameters, buffers, optimizer state.

        Args:
            into_buffer: whether the pieces are copied into the transfer buffer. Otherwise a piece
                is valid until the next one.

        """
        spare = None if into_buffer else self.values.new_empty(self._piece)
        for piece in self._pieces:
            start, stop, *kinds = piece
            values = self.values[start:stop] if spare is None else spare[: stop - start]
            self._view.read_(self.start + start, self.start + stop, values)
            parameters, buffers, carried = (values[k.start - start : k.stop - start] for k in kinds)
            yield piece, parameters, buffers, carried

    def _ranges(self, numel: int, each: int) -> list[Chunk]:
        ranges = []
        for start in range(0, numel, each):
            stop = min(start + each, numel)
            parameters, buffers, carried = (
                slice(min(max(kind.start, start), stop), min(max(kind.stop, start), stop))
                for kind in (self.parameters, self.buffers, self.carried)
            )
            ranges.append(Chunk(start, stop, parameters, buffers, carried))
        return ranges

    def carried_pieces(self, place: slice) -> Iterator[tuple[Tensor, slice]]:
        """Tensors of optimizer state in a range of the shard, and their ranges in the state."""
        # From positions in the shard to positions in the whole optimizer state, and back.
        offset = self.start - len(self._model)
        for tensor, _, inside in self._carried.pieces(place.start + offset, place.stop + offset):
            piece = slice(place.start + inside.start, place.start + inside.stop)
            yield tensor, self.inside_carried(piece)

    def inside_carried(self, place: slice) -> slice:
        """The part of a range of the shard that is optimizer state, counted from its start."""
        first = self.carried.start
        return slice(max(place.start - first, 0), max(place.stop - first, 0))

    def distribute(self, start: int, stop: int) -> Sequence[Pending]:
        """All-gather, or broadcast, elements ``start`` to ``stop`` of every shard in the group.

        A collective of the group. Afterwards the transfer buffers of its ranks are equal bit for
        bit.
        """
        if not self._placement.distributes:
            return ()
        group = self._placement.group
        if not self._placement.sharded:  # from the leader, whose shard is everything
            return (group.broadcast_(self._buffer[start:stop], "models"),)
        # As a list, because the same range of every shard is not one range of the buffer.
        shards = self._buffer.view(group.size, -1)[:, start:stop].unbind()
        return (group.gather_into(shards, shards[group.position], "models"),)

    def distribute_all(self) -> None:
        """Call :meth:`distribute` for all elements, and wait."""
        for pending in self.distribute(0, self._longest):
            pending.wait()

    def write_chunk(self, chunk: Chunk, *, carried: bool = True) -> None:
        """Write a chunk of every rank's shard into the tensors that are contiguous, in place.

        Args:
            chunk: one of :attr:`chunks`, after :meth:`distribute`.
            carried: whether to write the state of the local optimizer as well.

        """
        view = self._view if carried else self._model
        # The chunk is a range of each shard, which lies at another place of the flat tensors.
        for first in self._starts:
            stop = min(first + chunk.stop, len(view))
            view.write_range(first + chunk.start, stop, self._buffer)

    def write(self, *, carried: bool = True) -> None:
        """Copy the whole transfer buffer into the tensors, in place."""
        (self._view if carried else self._model).write_from(self._buffer)

    def write_scattered(self, *, carried: bool = True) -> None:
        """Write the tensors that are not contiguous, after all chunks are distributed."""
        (self._view if carried else self._model).write_scattered(self._buffer)

    def whole(self, vector: Tensor, kind: slice) -> dict[Tensor, Tensor]:
        """The values of a vector by tensor, gathered from all shards. A collective of the group.

        Args:
            vector: this rank's shard, with an element for each of ``kind``.
            kind: :attr:`parameters`, :attr:`buffers` or :attr:`carried`.

        Returns:
            Views of the transfer buffer. Those of tensors of another kind have no meaning.

        """
        self.values[kind].copy_(vector)
        self.distribute_all()
        sizes = [local_tensor(tensor).numel() for tensor in self._view.tensors]
        pieces = self._buffer[: len(self._view)].split(sizes)
        return dict(zip(self._view.tensors, pieces, strict=True))

    def fill_(self, vector: Tensor, kind: slice, whole: Mapping[Tensor, Tensor]) -> None:
        """Set a vector from those values in ``whole`` that are in this shard, in place.

        Elements of tensors that are not in ``whole`` do not change.

        Args:
            vector: as in :meth:`whole`.
            kind: as in :meth:`whole`.
            whole: flat values by tensor, such as the result of :meth:`whole` of a shard with fewer
                tensors.

        """
        first, last = self.start + kind.start, self.start + kind.stop
        for tensor, inside, place in self._view.pieces(first, last):
            if tensor in whole:
                vector[place].copy_(whole[tensor][inside])
