"""What workers have sent of one tensor, in whichever coding, added to it chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from lightning_hier.algorithms.coding import add_bitmap_signs_, bitmap_words
from lightning_hier.algorithms.threshold import split_words

# Elements that stay in the cache while they are worked on, with what is computed of them; by
# measurement. A multiple of the elements of a bitmap's word.
CHUNK = 1 << 16


def chunk_of(values: Tensor) -> int:
    """Elements worked on at a time: an accelerator takes them all at once."""
    return CHUNK if values.device.type == "cpu" else max(values.numel(), 1)


class Signs(Protocol):
    """The signs that were sent of a tensor."""

    def add_(self, target: Tensor, number: int) -> None:
        """Add them to the tensor's chunk of this number, in place."""


class SignedWords:
    """The words of some workers, each worth ``unit`` with its sign."""

    def __init__(self, rows: Sequence[Tensor], like: Tensor, unit: float = 1.0) -> None:
        """Sort the words of all ``rows`` (each ascending) by the chunk of ``like`` they lie in."""
        size = chunk_of(like)
        words, counts = rows[0] if len(rows) == 1 else torch.cat(list(rows)), None
        if like.numel() > size:
            words, counts = _by_chunk(rows, like.numel(), size)
        index, negative = split_words(words)
        one = torch.full((), unit, dtype=like.dtype, device=like.device)
        signed = torch.where(negative, -one, one)
        if counts is None:
            self._index, self._signed = (index,), (signed,)
        else:
            index.remainder_(size)
            self._index, self._signed = index.split(counts), signed.split(counts)

    def add_(self, target: Tensor, number: int) -> None:
        """See :class:`Signs`."""
        if len(self._index[number]):
            target.index_add_(0, self._index[number], self._signed[number])


def _by_chunk(rows: Sequence[Tensor], numel: int, size: int) -> tuple[Tensor, list[int]]:
    """All words, those of the first chunk first, and their number in each chunk."""
    starts = torch.arange(size, numel, size, dtype=torch.int32)
    pieces = []
    for row in rows:
        ends = torch.searchsorted(row.bitwise_and(0x7FFFFFFF), starts).tolist()
        sizes = [end - begin for begin, end in zip([0, *ends], [*ends, len(row)], strict=True)]
        pieces.append(row.split(sizes))
    if len(rows) == 1:
        return rows[0], [len(piece) for piece in pieces[0]]
    by_chunk = list(zip(*pieces, strict=True))
    counts = [sum(map(len, chunk)) for chunk in by_chunk]
    return torch.cat([piece for chunk in by_chunk for piece in chunk]), counts


class BitmapSigns:
    """The bitmaps of some workers."""

    def __init__(self, rows: Sequence[Tensor], like: Tensor) -> None:
        """Cut the bitmaps where the chunks of ``like`` are cut."""
        pieces = [row.split(bitmap_words(chunk_of(like))) for row in rows]
        self._pieces = list(zip(*pieces, strict=True))

    def add_(self, target: Tensor, number: int) -> None:
        """See :class:`Signs`."""
        for piece in self._pieces[number]:
            add_bitmap_signs_(target, piece)


class DenseSigns:
    """The sum of all workers' signs, one for each element."""

    def __init__(self, sums: Tensor, like: Tensor) -> None:
        """Cut ``sums`` where the chunks of ``like`` are cut."""
        self._pieces = sums.split(chunk_of(like))

    def add_(self, target: Tensor, number: int) -> None:
        """See :class:`Signs`."""
        target.add_(self._pieces[number])
