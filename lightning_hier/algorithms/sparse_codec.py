"""Codec that sends the largest elements of a tensor, with their positions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels.native import loops_for
from lightning_hier.algorithms.kernels.payload import INTEGER
from lightning_hier.algorithms.quantisation import QUANTISATION_GROUP, Codec

# Short enough that every part of a model sends its share, and that a position fits into int16.
SELECTION_BLOCK = 4096
"""Elements of which the largest are selected together."""


class SparseCodec(Codec):
    """Sends the largest magnitudes of each block of elements, and nothing of the others.

    Of n elements, ``ceil(density * n)`` are sent from each block of ``SELECTION_BLOCK`` consecutive
    ones, and from the shorter last one. An element that is not sent has itself as its error, so
    decoded values plus errors are the encoded values, as with every codec. NaN and inf count as the
    largest. Of equal magnitudes, the first are sent.

    The values come first, in the encoding of another codec and padded with zeros to whole
    quantisation groups. Two bytes for each follow, the position in its block. The length depends on
    the number of elements alone, so ranks need not agree on it.

    Any number of elements is valid.

    Args:
        values: codec of the values that are sent.
        density: share of the elements that is sent, above 0.

    """

    def __init__(self, values: Codec, density: float) -> None:
        self._values = values
        self._density = density

    def bytes_for(self, numel: int) -> int:
        """Bytes of the values, and two for each, rounded up to a multiple of 8."""
        sent = self.entries(numel)
        return self._values.bytes_for(_padded(sent)) + -(-2 * sent // 8) * 8

    def entries(self, numel: int) -> int:
        """Number of elements that are sent."""
        return sum(rows * self._of_block(length) for _, rows, length in _blocks(numel))

    def encode_(
        self, values: Tensor, out: Tensor, *, plus: Tensor | None = None, weight: float = 1.0
    ) -> None:
        """See :class:`Codec`."""
        if plus is not None:
            values[: plus.numel()].add_(plus, alpha=weight)
        offsets, positions = self._largest(values)
        # Padded with zeros, which change the scale of no group.
        sent = values.new_zeros(_padded(positions.numel()))
        selected = sent[: positions.numel()].copy_(values[positions])
        encoded, places = self._parts(out, values.numel())
        self._values.encode_(sent, encoded)
        # `selected` is a view of `sent`, in which encode_ has left the errors.
        values[positions] = selected
        places.copy_(offsets)

    def decode(self, data: Tensor, out: Tensor, *, add: bool = False) -> None:
        """See :class:`Codec`."""
        encoded, places = self._parts(data, out.numel())
        read = out.new_empty(_padded(places.numel()))
        self._values.decode(encoded, read)
        if not add:
            out.zero_()
        positions = places + self._block_starts(out.numel(), out.device)
        # A position occurs once, so no result depends on the order of additions.
        out.index_add_(0, positions, read[: places.numel()])

    def _of_block(self, length: int) -> int:
        return math.ceil(self._density * length)

    def _largest(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Positions in their blocks (int16), and positions, of the elements to send."""
        offsets_of_blocks = [
            largest(values[start : start + rows * length], length, self._of_block(length))
            for start, rows, length in _blocks(values.numel())
        ]
        offsets = torch.cat(offsets_of_blocks)
        return offsets, offsets + self._block_starts(values.numel(), values.device)

    def _block_starts(self, numel: int, device: torch.device) -> Tensor:
        """Position of the first element of its block, for each element that is sent."""
        # The number of elements of a block follows from its length, so starts need not be sent.
        starts = [
            torch.arange(start, start + rows * length, length, device=device).repeat_interleave(
                self._of_block(length)
            )
            for start, rows, length in _blocks(numel)
        ]
        return torch.cat(starts)

    def _parts(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Views of the encoded values and of the positions in their blocks (int16)."""
        sent = self.entries(numel)
        end = self._values.bytes_for(_padded(sent))
        return data[:end], data[end : end + 2 * sent].view(torch.int16)


def largest(values: Tensor, length: int, number: int) -> Tensor:
    """Select the ``number`` largest magnitudes in each row of ``length`` elements.

    NaN and inf count as the largest. Of equal magnitudes, the first are selected.

    Returns:
        Their offsets in their rows (int16), row by row and in ascending order.

    """
    if loops := loops_for(values):
        rows = values.numel() // length
        offsets = torch.empty(rows * number, dtype=torch.int16)
        loops.largest(values.data_ptr(), rows, length, number, offsets.data_ptr())
        return offsets
    # Compared as bits, of which NaN has the largest. What topk selects depends on the device, so
    # only its smallest value is used.
    magnitudes = values.abs().view(INTEGER[values.itemsize]).view(-1, length)
    least = magnitudes.topk(number, dim=1, sorted=False).values.amin(1, keepdim=True)
    above, equal = magnitudes > least, magnitudes == least
    wanted = number - above.sum(1, keepdim=True)
    # A row has at most SELECTION_BLOCK elements, whose number fits into int16.
    chosen = above.logical_or_(equal & (equal.cumsum(1, dtype=torch.int16) <= wanted))
    # Without a wait for the device, because the number of offsets is known.
    return chosen.nonzero_static(size=len(chosen) * number)[:, 1].to(torch.int16)


def _blocks(numel: int) -> Iterator[tuple[int, int, int]]:
    """Start, number and length of the whole blocks, and of the shorter last one."""
    rows, rest = divmod(numel, SELECTION_BLOCK)
    if rows:
        yield 0, rows, SELECTION_BLOCK
    if rest:
        yield rows * SELECTION_BLOCK, 1, rest


def _padded(numel: int) -> int:
    """Length in whole quantisation groups."""
    return -(-numel // QUANTISATION_GROUP) * QUANTISATION_GROUP
