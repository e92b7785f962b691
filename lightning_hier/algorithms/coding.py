"""How the selected elements of one tensor travel: as words, as a bitmap, or as dense signs.

The three carry the same values; they differ in bytes. A word costs 32 bits for each element that
is sent, the bitmap 2 bits for each element of the tensor, the dense form one signed byte for each
element, but it is summed on the way instead of gathered from every rank.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from lightning_hier.algorithms.chunks import chunk_length
from lightning_hier.algorithms.threshold import split_words

_ELEMENTS_PER_WORD = 16

# Bytes of a bitmap looked up at a time: what they stand for stays in the cache.
_CHUNK = 1 << 15


class Coding(IntEnum):
    """The form in which one tensor's selection is exchanged."""

    NOTHING = 0
    WORDS = 1
    BITMAP = 2
    DENSE = 3


def bitmap_words(numel: int) -> int:
    """Number of 32-bit words that the bitmap of ``numel`` elements takes."""
    return -(-numel // _ELEMENTS_PER_WORD)


def dense_dtype(group_size: int) -> torch.dtype:
    """Smallest integer type that holds the sum of the signs of ``group_size`` workers."""
    return torch.int8 if group_size <= torch.iinfo(torch.int8).max else torch.int32


def choose_coding(most_sent: int, numel: int, group_size: int) -> Coding:
    """The coding that puts the fewest bytes on the wire.

    Words and bitmaps are gathered: a rank passes on P - 1 of them. Dense signs are reduced in a
    ring: a rank passes on 2 (P - 1) / P of the tensor.

    Args:
        most_sent: the largest number of elements that a worker of the group sends. All ranks know
            it from the exchange of the counts, so all choose alike.
        numel: elements of the tensor.
        group_size: P.

    """
    if most_sent == 0:
        return Coding.NOTHING
    gathered = 4 * min(most_sent, bitmap_words(numel))
    reduced = 2 * numel * dense_dtype(group_size).itemsize / group_size
    if reduced < gathered:
        return Coding.DENSE
    return Coding.WORDS if most_sent <= bitmap_words(numel) else Coding.BITMAP


def words_to_bitmap(words: Tensor, numel: int) -> Tensor:
    """Bitmap (int32, 2 bits an element: 1 for plus, 2 for minus) of int32 words."""
    bitmap = torch.zeros(bitmap_words(numel), dtype=torch.int32, device=words.device)
    index, negative = split_words(words)
    codes = negative.int().add_(1).bitwise_left_shift_(index.remainder(_ELEMENTS_PER_WORD).mul_(2))
    # No two elements share bits: their sum is their union.
    return bitmap.index_add_(0, index.div_(_ELEMENTS_PER_WORD, rounding_mode="floor"), codes)


def add_bitmap_signs_(signs: Tensor, bitmap: Tensor) -> None:
    """Add the +1 and -1 of a bitmap to ``signs`` (1-D), in place."""
    packed = bitmap.view(torch.uint8)
    table = _signs_of_a_byte(signs.dtype, signs.device)
    length = chunk_length(packed, _CHUNK)
    for start in range(0, packed.numel(), length):
        found = functional.embedding(packed[start : start + length].int(), table).view(-1)
        target = signs[4 * start : 4 * start + found.numel()]
        target.add_(found[: target.numel()])


@lru_cache
def _signs_of_a_byte(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The four signs that each of the 256 bytes of a bitmap stands for, (256, 4)."""
    shifts = torch.tensor([0, 2, 4, 6], device=device)
    codes = torch.arange(256, device=device)[:, None] >> shifts & 3
    return (codes == 1).to(dtype) - (codes == 2).to(dtype)
