"""The passes of :mod:`encoding` as Triton kernels, for tensors on CUDA devices.

Imported where such a tensor comes along and Triton is there, and only then. The bits and the order
of the words are those of the forms for the CPU. What a pass costs is how often it goes through the
device's memory, so each goes through its tensors once; a block of elements is worked on by one
program::

    add_and_select   v <- g + r; two bits for each element that tell what is sent; how many in each
                     block, and whether all are finite            reads g, r; writes v
    (torch)          sum of the counts of the blocks before: where each block's words begin
    write_words      the words of each block, in ascending order of index, from the two bits
    find_begins      where the words of each block begin among those of one worker
    settle           r <- v - sent; the mean of what all sent     reads v; writes r, v
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
from torch import Tensor

from lightning_hier.algorithms import fused_kernels as kernels

# Elements for each program, by measurement; a multiple of those that make up a code.
BLOCK = 1024

# Codes whose words are written by one program: one for each lane of its four warps, by measurement.
_CODES = 128

# Words of one block and worker that are added at a time.
_WORDS = 128

# Blocks whose words are looked for by one program.
_LANES = 256


def encode_(values: Tensor, residual: Tensor, limit: int, infinity: int) -> tuple[Tensor, bool]:
    """As :func:`encoding.encode_` at a scale of 1, for magnitudes whose bits exceed ``limit``.

    Args:
        values: see there.
        residual: see there.
        limit: bits of the greatest magnitude that is not sent.
        infinity: those of infinity.

    """
    numel = values.numel()
    blocks = triton.cdiv(numel, BLOCK)
    if blocks == 0:
        return torch.empty(0, dtype=torch.int32, device=values.device), True
    codes = values.new_empty(blocks * (BLOCK // kernels.PER_CODE), dtype=torch.int32)
    counts = values.new_empty(blocks, dtype=torch.int64)
    grid = (blocks,)
    kernels.add_and_select[grid](
        values, residual, codes, counts, numel, limit, infinity, BLOCK=BLOCK
    )
    ends = counts.cumsum(0)
    found = int(ends[-1])
    if found >= kernels.UNSOUND:
        return values.new_empty(0, dtype=torch.int32), False
    words = values.new_empty(found, dtype=torch.int32)
    if found:
        size = max(_CODES, BLOCK // kernels.PER_CODE)
        kernels.write_words[(triton.cdiv(codes.numel(), size),)](
            codes, counts, ends, words, codes.numel(), BLOCK=BLOCK, CODES=size
        )
    return words, True


def settle_(
    values: Tensor,
    residual: Tensor,
    limit: int,
    rows: Sequence[Tensor],
    factors: Sequence[float],
) -> None:
    """As :func:`encoding.settle_`, where what was received are words.

    Args:
        values: see there.
        residual: see there.
        limit: bits of the threshold, at most those of the greatest number.
        rows: the words of all workers; may be none, and then the values become zeros.
        factors: at most two.

    """
    blocks = triton.cdiv(values.numel(), BLOCK)
    if blocks == 0:
        return
    words, begins = _by_block(rows, values, blocks)
    first, second = (_bits64(factor) for factor in (*factors, 1.0, 1.0)[:2])
    kernels.settle[(blocks,)](
        values, residual, words, begins, values.numel(), limit, len(rows), first, second,
        BLOCK=BLOCK, WORDS=_WORDS,
    )  # fmt: skip


def _by_block(rows: Sequence[Tensor], like: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """All words, and where those of each worker and block begin, (workers, blocks + 1)."""
    begins = like.new_empty((len(rows), blocks + 1), dtype=torch.int64)
    if not rows:
        return like.new_empty(0, dtype=torch.int32), begins
    words = torch.cat(list(rows))
    lengths = [row.numel() for row in rows]
    offsets = torch.tensor([0, *accumulate(lengths)]).to(like.device, non_blocking=True)
    grid = (triton.cdiv(blocks + 1, _LANES), len(rows))
    halvings = max(lengths).bit_length()
    kernels.find_begins[grid](words, offsets, begins, blocks, halvings, BLOCK=BLOCK, LANES=_LANES)
    return words, begins


def _bits64(number: float) -> int:
    """Of a float64, as a whole number."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits
