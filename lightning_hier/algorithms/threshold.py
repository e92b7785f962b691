"""Gradient threshold compression (GTC): which elements are sent, and what stays behind."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunk_length

# A word spends 31 bits on the index, so a longer tensor is sent in several segments.
MAX_SEGMENT = 1 << 31

# Elements examined at a time: the compared, selected and counted values stay in the cache.
_CHUNK = 1 << 16

SIGN_BIT = 1 << 31

# A tensor whose gradient is zero for thousands of steps lowers its threshold no further, so that
# there is one to raise again; normal even in float32.
_SMALLEST_THRESHOLD = 1e-30


def segments(numel: int, longest: int = MAX_SEGMENT) -> Iterator[slice]:
    """Cut ``numel`` elements into pieces of at most ``longest``, in order, without gaps."""
    for start in range(0, numel, longest):
        yield slice(start, min(start + longest, numel))


def select_words(values: Tensor, threshold: float) -> tuple[Tensor, float]:
    """Find what one worker sends: the elements whose magnitude exceeds the threshold.

    An element above T is sent as +T, one below -T as -T (two_tiered_bmuf_gtc 2.1), as one 32-bit
    word: the top bit is the sign, the other 31 the index.

    Args:
        values: residual plus gradient, 1-D, at most 2**31 elements. Not changed.
        threshold: T, above 0, in units of ``values``.

    Returns:
        The words, int32, in ascending order of index, and the largest magnitude among the values,
        which is NaN or inf where a value is.

    """
    found = []
    largest = []
    length = chunk_length(values, _CHUNK)
    for start in range(0, values.numel(), length):
        chunk = values[start : start + length]
        magnitude = chunk.abs()
        largest.append(magnitude.max())
        index = (magnitude > threshold).nonzero().view(-1)
        negative = chunk[index] < 0
        # index - 2**31 is the two's complement form of "sign bit set, then the index".
        found.append((index + start - negative.long() * SIGN_BIT).int())
    if not found:
        return torch.empty(0, dtype=torch.int32, device=values.device), 0.0
    # max() ignores the order of NaN in Python; torch's keeps it.
    return torch.cat(found), float(torch.stack(largest).max())


def split_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (int64) and whether each is negative (bool) of int32 words."""
    return (words & (SIGN_BIT - 1)).long(), words < 0


def add_signs_(signs: Tensor, words: Tensor) -> None:
    """Add +1 or -1 to ``signs`` at each word's index, in place.

    Sums of signs are small whole numbers, hence exact in every floating-point format in use and
    equal on all ranks whatever the order: the quantum multiplies them only at the end.
    """
    index, negative = split_words(words)
    one = torch.ones((), dtype=signs.dtype, device=signs.device)
    # The indices of one worker are distinct, so a gather, an addition and a scatter are enough.
    signs[index] += torch.where(negative, -one, one)


def first_threshold(gradient_rms: float, density: float) -> float:
    """Threshold from which the automatic control starts.

    A residual under noise of standard deviation sigma is a random walk: it needs about
    (T / sigma)**2 steps to reach T, so the share of elements sent per step is (sigma / T)**2, and
    T = sigma / sqrt(density).
    """
    return gradient_rms / math.sqrt(density)


def next_threshold(threshold: float, *, sent: int, elements: int, density: float) -> float:
    """Move the threshold of one tensor so that about ``density`` of its elements is sent.

    In the long run the density goes as T**-2, so the exact correction has exponent 1/2. But a
    change of T by the step sigma of a residual, a share sqrt(density) of T, releases or holds back
    at once all residuals near T: the exponent is smaller by that factor, or T would swing between
    sending nothing and sending many times the density. One more element on both sides keeps the
    logarithm finite for tensors that send nothing.

    Args:
        threshold: T of this step.
        sent: elements sent in this step, over all workers of the group.
        elements: elements that could have been sent, over all workers of the group.
        density: the share that should be.

    """
    ratio = (sent + 1) / (elements * density + 1)
    return max(threshold * float(ratio ** (0.5 * math.sqrt(density))), _SMALLEST_THRESHOLD)
