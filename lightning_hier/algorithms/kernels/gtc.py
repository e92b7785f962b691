"""GTC's two passes over a gradient: in plain torch, which defines the results, or in compiled form.

There are two because a step counts only if it is finite on all ranks: the residual is not changed
before the second one. The tensors of a step are larger than the cache, so the cost of a pass is the
number of times that it goes through memory. Each pass processes its tensors in chunks that stay in
the cache, and allocates no memory of their size. Tensors are 1-D.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, byref, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunks
from lightning_hier.algorithms.kernels import triton_backend
from lightning_hier.algorithms.kernels.native import loops_for
from lightning_hier.algorithms.kernels.payload import (
    INTEGER,
    SIGN_BIT,
    add_payloads_,
    add_words_,
    magnitude_bits,
)

# Elements that one call of a C loop encodes. This limits the size of the buffer for their words.
PIECE = 1 << 18


def encode_(
    values: Tensor, residual: Tensor, threshold: float, *, scale: float = 1.0
) -> tuple[Tensor, bool]:
    """Add the residual to the gradient, in place, and select the elements to send.

    An element above T is sent as +T, one below -T as -T (two_tiered_bmuf_gtc 2.1).

    Args:
        values: gradient times ``scale``, at most 2**31 elements. Becomes residual plus gradient.
        residual: error feedback of the same length. Not changed.
        threshold: T, above 0, in units of ``residual``.
        scale: current factor of loss scaling.

    Returns:
        The selected elements as int32 words (:mod:`payload`), in ascending order of index, and
        whether all values are finite. If not, the words are undefined.

    """
    if loops := loops_for(values, residual):
        return _encode_in_loops(loops, values, residual, threshold, scale)
    if triton_backend.suits(values, residual):
        return triton_backend.encode_(values, residual, threshold, scale)
    limit, integer = magnitude_bits(threshold, values.dtype), INTEGER[values.itemsize]
    words = [torch.empty(0, dtype=torch.int32, device=values.device)]
    start, finite = 0, True
    for chunk, kept in chunks(values, residual):
        if scale != 1.0:
            chunk.div_(scale)
        chunk.add_(kept)
        # In place, because torch vectorises comparisons with integer results, not with bool.
        index = chunk.abs().view(integer).gt_(limit).nonzero().view(-1)
        selected = chunk[index]
        # Values that are not finite are always selected (magnitude_bits).
        finite = finite and bool(selected.isfinite().all())
        # index - 2**31 is the two's complement form of "sign bit set, then the index".
        words.append(index.add_(start).sub_((selected < 0).long().mul_(SIGN_BIT)).int())
        start += chunk.numel()
    return torch.cat(words), finite


def decode_(
    values: Tensor,
    residual: Tensor,
    sent: Tensor,
    threshold: float,
    rows: Sequence[Tensor],
    factors: Sequence[float],
    *,
    bitmaps: bool = False,
) -> None:
    """Update the residual, and overwrite the values with the mean over all workers.

    Args:
        values: residual plus gradient, from :func:`encode_`. Becomes the mean: the sum of the signs
            of all workers, times each of ``factors`` in this order. Sums of signs are integers, so
            the mean has the same bits for every encoding and on every rank.
        residual: becomes ``values`` minus the elements that this worker sent.
        sent: words of this worker.
        threshold: T.
        rows: payload of each worker. If there is none, the values become zero.
        factors: at most two.
        bitmaps: whether the payloads are bitmaps instead of words.

    """
    if loops := loops_for(values, residual):
        _decode_in_loops(loops, values, residual, sent, threshold, rows, factors, bitmaps)
    elif triton_backend.suits(values, residual):
        triton_backend.decode_(values, residual, threshold, rows, factors, bitmaps=bitmaps)
    else:
        # The signs are summed in `values`, so that no tensor of its size is allocated.
        for chunk, kept in chunks(values, residual):
            kept.copy_(chunk)
            chunk.zero_()
        add_words_(residual, sent, -threshold)
        add_payloads_(values, rows, factors, bitmaps=bitmaps)


def _encode_in_loops(
    loops: CDLL, values: Tensor, residual: Tensor, threshold: float, scale: float
) -> tuple[Tensor, bool]:
    finite = c_int(1)
    words = torch.empty(min(PIECE, values.numel()), dtype=torch.int32)
    pieces = [words[:0]]
    for start in range(0, values.numel(), PIECE):
        count = loops.encode(
            values.data_ptr() + start * values.itemsize,
            residual.data_ptr() + start * values.itemsize,
            min(PIECE, values.numel() - start),
            *(scale, threshold, start, words.data_ptr(), byref(finite)),
        )
        # A copy, because the next call overwrites the buffer.
        pieces.append(words[:count].clone())
    return torch.cat(pieces), bool(finite.value)


def _decode_in_loops(
    loops: CDLL,
    values: Tensor,
    residual: Tensor,
    sent: Tensor,
    threshold: float,
    rows: Sequence[Tensor],
    factors: Sequence[float],
    bitmaps: bool,
) -> None:
    workers = len(rows)
    loops.decode(
        *(values.data_ptr(), residual.data_ptr(), values.numel()),
        *(threshold, sent.data_ptr(), sent.numel()),
        (c_void_p * workers)(*[row.data_ptr() for row in rows]),
        (c_int64 * workers)(*[row.numel() for row in rows]),
        (c_int64 * workers)(),  # zeros: for each row, the next word to add
        workers,
        (c_float * len(factors))(*factors),
        *(len(factors), bitmaps),
    )
