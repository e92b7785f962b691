"""The passes of :mod:`encoding` as Triton kernels, for tensors on CUDA devices.

Imported where such a tensor comes along and Triton is there, and only then. The bits and the order
of the words are those of the forms for the CPU. A block of elements is worked on by one program::

    add_and_count    v <- g + r; how many |v| > T in each block, and whether all are finite
    (torch)          sum of the counts of the blocks before: where each block's words begin
    write_words      the words of each block, in ascending order of index
    keep_residual    r <- v - sent; v <- 0
    add_row          the signs of one worker's words, onto v

Numbers of 16 bits are added in float32 and rounded once, as torch does.
"""

# Triton reads the kernels as text: its own language, which has no types for mypy.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements for each program.
BLOCK = 1024


@triton.jit
def _wide(x):
    """Float32 for shorter numbers."""
    return x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x


@triton.jit
def _exceeds(v, limit, inside):
    """Whether |v| > limit; NaN does."""
    return (~(tl.abs(v) <= limit)) & inside


@triton.jit
def _add_and_count(values, residual, limits, counts, numel, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    index = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    g = _wide(tl.load(values + index, mask=inside, other=0.0))
    r = _wide(tl.load(residual + index, mask=inside, other=0.0))
    v = (g + r).to(values.dtype.element_ty)
    tl.store(values + index, v, mask=inside)
    selected = _exceeds(_wide(v), _wide(tl.load(limits)), inside)
    unsound = _exceeds(_wide(v), _wide(tl.load(limits + 1)), inside)
    blocks = tl.num_programs(0)
    tl.store(counts + program, tl.sum(selected.to(tl.int64), 0))
    tl.store(counts + blocks + program, tl.sum(unsound.to(tl.int64), 0))


@triton.jit
def _write_words(values, limits, ends, words, numel, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    index = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    v = _wide(tl.load(values + index, mask=inside, other=0.0))
    selected = _exceeds(v, _wide(tl.load(limits)), inside)
    rank = tl.cumsum(selected.to(tl.int32), 0)
    begin = tl.load(ends + program) - tl.sum(selected.to(tl.int64), 0)
    word = index - ((v < 0).to(tl.int64) << 31)
    tl.store(words + begin + rank - 1, word.to(tl.int32), mask=selected)


@triton.jit
def _keep_residual(values, residual, limits, numel, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    v = _wide(tl.load(values + index, mask=inside, other=0.0))
    quantum = _wide(tl.load(limits))
    sent = tl.where(v < 0, -quantum, quantum)
    kept = tl.where(_exceeds(v, quantum, inside), v - sent, v)
    tl.store(residual + index, kept.to(residual.dtype.element_ty), mask=inside)
    tl.store(values + index, tl.zeros((BLOCK,), dtype=values.dtype.element_ty), mask=inside)


@triton.jit
def _add_row(values, words, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    word = tl.load(words + place, mask=inside, other=0)
    index = (word & 0x7FFFFFFF).to(tl.int64)
    # The indices of one worker are distinct: nobody else writes here meanwhile.
    signs = _wide(tl.load(values + index, mask=inside, other=0.0))
    signs += tl.where(word < 0, -1.0, 1.0).to(signs.dtype)
    tl.store(values + index, signs.to(values.dtype.element_ty), mask=inside)


def encode_(values: Tensor, residual: Tensor, threshold: float) -> tuple[Tensor, bool]:
    """As :func:`encoding.encode_` at a scale of 1."""
    numel = values.numel()
    blocks = triton.cdiv(numel, BLOCK)
    if blocks == 0:
        return torch.empty(0, dtype=torch.int32, device=values.device), True
    limits = _limits(values, threshold)
    counts = torch.empty((2, blocks), dtype=torch.int64, device=values.device)
    _add_and_count[(blocks,)](values, residual, limits, counts, numel, BLOCK=BLOCK)
    ends = counts[0].cumsum(0)
    found, unsound = torch.stack([ends[-1], counts[1].sum()]).tolist()
    words = torch.empty(found, dtype=torch.int32, device=values.device)
    if found:
        _write_words[(blocks,)](values, limits, ends, words, numel, BLOCK=BLOCK)
    return words, unsound == 0


def keep_residual_(values: Tensor, residual: Tensor, threshold: float) -> None:
    """``r <- v - sent``, and zeros in the place of v."""
    blocks = triton.cdiv(values.numel(), BLOCK)
    if blocks:
        limits = _limits(values, threshold)
        _keep_residual[(blocks,)](values, residual, limits, values.numel(), BLOCK=BLOCK)


def add_rows_(values: Tensor, rows: Sequence[Tensor]) -> None:
    """Add the signs of each worker's words to ``values``, in place."""
    for row in rows:
        blocks = triton.cdiv(row.numel(), BLOCK)
        if blocks:
            _add_row[(blocks,)](values, row, row.numel(), BLOCK=BLOCK)


def _limits(values: Tensor, threshold: float) -> Tensor:
    """The greatest magnitudes that are not sent, and that are finite, in the type of ``values``."""
    most = torch.finfo(values.dtype).max
    own = torch.tensor([threshold, most], dtype=values.dtype)
    return own.clamp_(max=most).to(values.device, non_blocking=True)
