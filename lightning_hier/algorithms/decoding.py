"""What workers have sent of one tensor, in whichever coding, added to it chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
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
    """The words of some workers, each worth ``unit`` with its sign.

    Attributes:
        rows: the words of each worker, ascending.

    """

    def __init__(self, rows: Sequence[Tensor], like: Tensor, unit: float = 1.0) -> None:
        """Words of a tensor that is ``like`` this one."""
        self.rows = rows
        self._like = like
        self._unit = unit

    def add_(self, target: Tensor, number: int) -> None:
        """See :class:`Signs`."""
        index, signed = self._chunks
        if len(index[number]):
            target.index_add_(0, index[number], signed[number])

    @cached_property
    def _chunks(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Indices within each chunk, and what is added there."""
        like, size = self._like, chunk_of(self._like)
        words, counts = _by_chunk(self.rows, like.numel(), size)
        index, negative = split_words(words)
        one = torch.full((), self._unit, dtype=like.dtype, device=like.device)
        signed = torch.where(negative, -one, one)
        if len(counts) > 1:
            index.remainder_(size)
        return index.split(counts), signed.split(counts)


def _by_chunk(rows: Sequence[Tensor], numel: int, size: int) -> tuple[Tensor, list[int]]:
    """All words, those of the first chunk first, and their number in each chunk."""
    if numel <= size:
        words = torch.cat(list(rows)) if len(rows) > 1 else rows[0]
        return words, [len(words)]
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
