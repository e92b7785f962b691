"""Two encodings of the elements of a tensor that a worker sends: words and bitmaps.

Both represent the same values in a different number of bytes. Words take 32 bits per sent element:
the top bit is the sign, the other 31 bits are the index. A bitmap takes 2 bits per element of the
tensor: 1 is plus, 2 is minus.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from lightning_hier.algorithms.chunks import chunk_length, chunks

MOST_ELEMENTS = 1 << 31
"""Elements of the longest tensor: a word has 31 bits for the index."""

SIGN_BIT = 1 << 31

_ELEMENTS_PER_WORD = 16

# Magnitudes of floating-point numbers have the same order as their bits as integers.
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}

# Bytes of a bitmap that are decoded at a time, so that the decoded signs stay in the cache.
_CHUNK = 1 << 15


def magnitude_bits(threshold: float, dtype: torch.dtype) -> int:
    """Bits of the largest magnitude that is not sent, as an integer.

    The limit is finite, and the bits of infinity and NaN exceed it. All values that are not finite
    are therefore selected, and it is sufficient to check the few selected values.
    """
    limit = torch.tensor(min(threshold, torch.finfo(dtype).max), dtype=dtype)
    return int(limit.view(INTEGER[dtype.itemsize]))


def bitmap_words(numel: int) -> int:
    """Number of 32-bit words in the bitmap of ``numel`` elements."""
    return -(-numel // _ELEMENTS_PER_WORD)


def split_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (int64) and signs (bool, True for minus) of int32 words."""
    return (words & (SIGN_BIT - 1)).long(), words < 0


def words_to_bitmap(words: Tensor, numel: int) -> Tensor:
    """Convert int32 words to a bitmap (int32)."""
    bitmap = torch.zeros(bitmap_words(numel), dtype=torch.int32, device=words.device)
    index, negative = split_words(words)
    codes = negative.int().add_(1).bitwise_left_shift_(index.remainder(_ELEMENTS_PER_WORD).mul_(2))
    # Elements have disjoint bits, so adding their codes combines them.
    return bitmap.index_add_(0, index.div_(_ELEMENTS_PER_WORD, rounding_mode="floor"), codes)


def add_words_(target: Tensor, words: Tensor, unit: float = 1.0) -> None:
    """Add ``unit`` with the sign of each word to ``target`` at the word's index, in place."""
    index, negative = split_words(words)
    plus = torch.full((), unit, dtype=target.dtype, device=target.device)
    target.index_add_(0, index, torch.where(negative, -plus, plus))


def add_bitmap_(target: Tensor, bitmap: Tensor) -> None:
    """Add the +1 and -1 of a bitmap to ``target`` (1-D), in place."""
    packed = bitmap.view(torch.uint8)
    table = _signs_of_a_byte(target.dtype, target.device)
    length = chunk_length(packed, _CHUNK)
    for start in range(0, packed.numel(), length):
        signs = functional.embedding(packed[start : start + length].int(), table).view(-1)
        part = target[4 * start : 4 * start + signs.numel()]
        # The last word of a bitmap may have bits for elements beyond the end of the tensor.
        part.add_(signs[: part.numel()])


def add_payloads_(
    target: Tensor, rows: Sequence[Tensor], factors: Sequence[float], *, bitmaps: bool
) -> None:
    """Add the signs of all workers to zeros, then multiply by each of ``factors``, in place."""
    # Signs first, because sums of whole numbers are exact in any order. Each factor rounds once.
    add_ = add_bitmap_ if bitmaps else add_words_
    for row in rows:
        add_(target, row)
    for (chunk,) in chunks(target) if rows else ():
        for factor in factors:
            chunk.mul_(factor)


@lru_cache
def _signs_of_a_byte(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Table of the four signs that each byte of a bitmap encodes, (256, 4)."""
    # The lowest two bits of a byte are its first element, as in words_to_bitmap.
    shifts = torch.tensor([0, 2, 4, 6], device=device)
    codes = torch.arange(256, device=device)[:, None] >> shifts & 3
    return (codes == 1).to(dtype) - (codes == 2).to(dtype)
