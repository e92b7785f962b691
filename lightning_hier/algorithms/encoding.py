"""GTC's two passes over a tensor: encode when its gradient is there, settle when all have sent.

The gradient of a step lies in memory that is not in any cache, so what a pass costs is how often it
goes through that memory. Each of the two goes through it once, in chunks that stay in the cache
while they are added, compared, selected, or zeroed and filled with the mean::

    encode_    v <- g / scale + r, in the place of g; the words of |v| > T    reads g, r; writes g
    settle_    r <- v - sent; then the mean of what all sent, in place of v   reads v; writes r, v

Between the two v lies in the place of g and r is what it was, so that a step which turns out not to
be finite on some rank leaves no trace. Nothing as large as the tensor is allocated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hier.algorithms.decoding import SignedWords, Signs, chunk_of
from lightning_hier.algorithms.gtc_passes import PIECE, gtc_passes_for
from lightning_hier.algorithms.threshold import SIGN_BIT, select_words

# Numbers of the same width: their bits, read as a whole number, order magnitudes as they are.
_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY = {
    torch.float16: (np.float16, np.int16),
    torch.float32: (np.float32, np.int32),
    torch.float64: (np.float64, np.int64),
}


@dataclass(frozen=True)
class _Room:
    """Place for what is found of one chunk: |v|, the same as bits, and whether it exceeds T."""

    magnitude: Tensor
    bits: NDArray[np.signedinteger]
    exceeds: NDArray[np.bool_]

    @classmethod
    def of(cls, numel: int, dtype: torch.dtype) -> _Room:
        magnitude = torch.empty(numel, dtype=dtype)
        bits = magnitude.view(_INTEGER[dtype.itemsize]).numpy()
        return cls(magnitude, bits, np.empty(numel, dtype=np.bool_))

    def first(self, numel: int) -> _Room:
        """The part for a chunk of so many elements."""
        if numel == len(self.bits):
            return self
        return _Room(self.magnitude[:numel], self.bits[:numel], self.exceeds[:numel])


class Scratch:
    """Room for one chunk, made at the first use of a dtype and used again ever after."""

    def __init__(self) -> None:
        """Allocate nothing yet."""
        self._rooms: dict[torch.dtype, _Room] = {}
        self._words: Tensor | None = None

    def room(self, like: Tensor) -> _Room:
        """Room for a chunk of this tensor's dtype, on the CPU."""
        if like.dtype not in self._rooms:
            self._rooms[like.dtype] = _Room.of(chunk_of(like), like.dtype)
        return self._rooms[like.dtype]

    def words(self) -> Tensor:
        """Room for the words of one call of the compiled encoder."""
        if self._words is None:
            self._words = torch.empty(PIECE, dtype=torch.int32)
        return self._words


def encode_(
    values: Tensor, residual: Tensor, threshold: float, scratch: Scratch, *, scale: float = 1.0
) -> tuple[Tensor, bool]:
    """Add the residual to the gradient, in place, and select what this worker sends.

    Args:
        values: gradient times ``scale``, 1-D, contiguous, at most 2**31 elements. Becomes residual
            plus gradient.
        residual: of the same form. Not changed.
        threshold: T, in units of ``residual``.
        scratch: room that is used again from call to call.
        scale: by which gradients are scaled at this moment.

    Returns:
        The words (int32, in ascending order of index) as :func:`select_words` gives them, and
        whether all values are finite. Where they are not, the words are of no use.

    """
    limit, infinity = bits_of(threshold, values.dtype)
    if values.device.type != "cpu":
        if scale != 1.0:
            values.div_(scale)
        kernels = _kernels_for(values, residual)
        if kernels is not None:
            selected: tuple[Tensor, bool] = kernels.encode_(values, residual, limit, infinity)
            return selected
        return encode_by_torch_(values, residual, threshold)
    compiled = gtc_passes_for(values, residual)
    if compiled is not None:
        words, largest = compiled.encode_(values, residual, limit, scratch.words(), scale)
    else:
        words, largest = _encode_chunks_(values, residual, limit, scratch, scale)
    return words, largest < infinity


def _encode_chunks_(
    values: Tensor, residual: Tensor, limit: int, scratch: Scratch, scale: float
) -> tuple[Tensor, int]:
    """The words, and the greatest bits of a selected magnitude; 0 where none is."""
    bits = values.view(_INTEGER[values.dtype.itemsize]).numpy()
    chunks = zip(values.split(chunk_of(values)), residual.split(chunk_of(values)), strict=True)
    found = []
    largest = 0
    start = 0
    for chunk, kept in chunks:
        if scale != 1.0:
            chunk.div_(scale)
        chunk.add_(kept)
        room = scratch.room(values).first(chunk.numel())
        torch.abs(chunk, out=room.magnitude)
        # torch compares into booleans, and looks for those that are true, an element at a time.
        index = np.flatnonzero(np.greater(room.bits, limit, out=room.exceeds))
        if len(index):
            largest = max(largest, int(room.bits.take(index).max()))
            index += start
            # index - 2**31 is the two's complement form of "sign bit set, then the index".
            found.append((index - (bits.take(index) < 0) * SIGN_BIT).astype(np.int32))
        start += chunk.numel()
    words = np.concatenate(found) if found else np.empty(0, dtype=np.int32)
    return torch.from_numpy(words), largest


def bits_of(threshold: float, dtype: torch.dtype) -> tuple[int, int]:
    """Bits that those of a magnitude must exceed to be sent, and those of infinity.

    The bits of NaN exceed those of infinity, and the limit is finite: what is not finite is always
    among the selected, so that these few tell whether all values are.
    """
    # A step asks for every tensor: numpy is quicker by far, but has no bfloat16.
    if dtype in _NUMPY:
        number, bits = _NUMPY[dtype]
        with np.errstate(over="ignore"):
            pair = np.array([threshold, np.inf]).astype(number).view(bits)
        limit, infinity = pair.tolist()
    else:
        limit, infinity = (
            int(torch.tensor(value, dtype=dtype).view(_INTEGER[dtype.itemsize]))
            for value in (threshold, torch.inf)
        )
    return min(limit, infinity - 1), infinity


def encode_by_torch_(values: Tensor, residual: Tensor, threshold: float) -> tuple[Tensor, bool]:
    """:func:`encode_` at a scale of 1 in plain torch, for any device."""
    values.add_(residual)
    words, largest = select_words(values, threshold)
    return words, math.isfinite(largest)


@lru_cache
def triton_kernels(device: torch.device) -> ModuleType | None:
    """The kernels, tried once on the device; None where they can't run: plain torch does the same.

    Triton compiles part of itself at the first launch, which needs a C compiler, and more that
    differs between versions and devices.
    """
    try:
        kernels = import_module("lightning_hier.algorithms.fused")
    except ImportError:
        return None
    values, residual = torch.ones(2, 1, device=device)
    limit, infinity = bits_of(0.5, values.dtype)
    try:
        words, _ = kernels.encode_(values, residual, limit, infinity)
        kernels.settle_(values, residual, limit, [words], [1.0])
    except Exception as error:  # of many kinds
        warnings.warn(
            f"Triton's kernels can't run here ({type(error).__name__}: {error}), so GTC encodes by "
            "plain torch, to the same bits and more slowly. Triton needs a C compiler (gcc, or the "
            "one that CC names) on every host.",
            stacklevel=2,
        )
        return None
    return kernels


def _kernels_for(values: Tensor, residual: Tensor) -> ModuleType | None:
    pair = (values, residual)
    fits = values.dtype == residual.dtype and all(one.is_contiguous() for one in pair)
    return triton_kernels(values.device) if fits and all(one.is_cuda for one in pair) else None


def settle_(
    values: Tensor,
    residual: Tensor,
    words: Tensor,
    threshold: float,
    received: Signs | None,
    factors: Sequence[float],
) -> None:
    """Keep as residual what was not sent, and overwrite the values with the mean of what was.

    Args:
        values: residual plus gradient as :func:`encode_` left it. Becomes the mean: the sum of all
            workers' signs times each of ``factors``.
        residual: becomes ``values - sent``.
        words: what this worker has sent.
        threshold: T.
        received: what all workers have sent; None where that is nothing.
        factors: multiplied in this order. Sums of signs are whole numbers, so that the mean is the
            same for every coding and rank.

    """
    compiled = gtc_passes_for(values, residual)
    if compiled is not None and (received is None or isinstance(received, SignedWords)):
        rows = [] if received is None else received.rows
        compiled.settle_(values, residual, words, threshold, rows, factors)
        return
    kernels = _kernels_for(values, residual)
    if kernels is not None:
        limit, _ = bits_of(threshold, values.dtype)
        if isinstance(received, SignedWords):
            kernels.settle_(values, residual, limit, received.rows, factors)
            return
        kernels.settle_(values, residual, limit, [], [])
        if received is not None:
            received.add_(values, 0)
            for factor in factors:
                values.mul_(factor)
        return
    size = chunk_of(values)
    sent = SignedWords([words], residual, unit=-threshold)
    chunks = zip(values.split(size), residual.split(size), strict=True)
    for number, (chunk, kept) in enumerate(chunks):
        kept.copy_(chunk)
        sent.add_(kept, number)
        chunk.zero_()
        if received is None:
            continue
        received.add_(chunk, number)
        for factor in factors:
            chunk.mul_(factor)
