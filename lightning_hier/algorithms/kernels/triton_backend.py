"""The Triton backend: passes of GTC on CUDA devices. Others use plain torch.

Each pass goes through its tensors in device memory once. A program processes a block of elements.
The kernels of GTC are::

    add_and_select   v <- g + r; two bits per sent element, the number of sent elements in each
                     block, and whether all values are finite     reads g, r; writes v
    (torch)          cumulative sum of these numbers: end of the words of each block
    write_words      the words of each block, in ascending order of index, from the two bits
    find_begins      the first word of each block, in the words of each worker
    decode           r <- v - sent; mean over all workers         reads v; writes r, v
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from itertools import accumulate
from types import ModuleType

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels.payload import add_payloads_, magnitude_bits

# Elements per program (measured), a multiple of the elements per code.
BLOCK = 1024

# Codes per program: one for each thread of its four warps (measured).
_CODES = 128

# Words of a block and worker that are added at the same time.
_WORDS = 128

# Blocks per program of find_begins.
_LANES = 256


@lru_cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernels run on a device, determined by a trial.

    Triton compiles a part of itself at the first launch. This needs a C compiler, and may fail for
    other reasons that depend on versions and devices.
    """
    values, residual = torch.ones(2, 1, device=device)
    try:
        words, _ = encode_(values, residual, 0.5)
        decode_(values, residual, 0.5, [words], [1.0])
    except ImportError:
        return False
    except Exception as error:  # the type depends on the cause and on Triton's version
        warnings.warn(
            f"Triton's kernels do not run on this host ({type(error).__name__}: {error}). "
            "Plain torch gives the same results more slowly. Triton needs a C compiler (gcc, or "
            "the value of CC) on every host.",
            stacklevel=2,
        )
        return False
    return True


def suits(values: Tensor, residual: Tensor) -> bool:
    """Whether the kernels can process these tensors: on one CUDA device, contiguous, of a dtype."""
    same = values.dtype == residual.dtype and values.device == residual.device
    contiguous = values.is_contiguous() and residual.is_contiguous()
    return values.is_cuda and same and contiguous and runs_on(values.device)


def _jit() -> ModuleType:
    """Import kernels at the first use, because not every host has Triton."""
    return import_module("lightning_hier.algorithms.kernels.triton_kernels")


def encode_(
    values: Tensor, residual: Tensor, threshold: float, scale: float = 1.0
) -> tuple[Tensor, bool]:
    """See :func:`lightning_hier.algorithms.kernels.gtc.encode_`."""
    if scale != 1.0:
        values.div_(scale)
    kernels, numel = _jit(), values.numel()
    limit = magnitude_bits(threshold, values.dtype)
    infinity = magnitude_bits(torch.inf, values.dtype) + 1
    blocks = -(-numel // BLOCK)
    if blocks == 0:
        return values.new_empty(0, dtype=torch.int32), True
    codes = values.new_empty(blocks * (BLOCK // kernels.PER_CODE), dtype=torch.int32)
    counts = values.new_empty(blocks, dtype=torch.int64)
    kernels.add_and_select[(blocks,)](
        values, residual, codes, counts, numel, limit, infinity, BLOCK=BLOCK
    )
    ends = counts.cumsum(0)
    # The only wait for the device: the host allocates the result, and needs its size.
    found = int(ends[-1])
    if found >= kernels.UNSOUND:
        return values.new_empty(0, dtype=torch.int32), False
    words = values.new_empty(found, dtype=torch.int32)
    if found:
        size = max(_CODES, BLOCK // kernels.PER_CODE)
        kernels.write_words[(-(-codes.numel() // size),)](
            codes, counts, ends, words, codes.numel(), BLOCK=BLOCK, CODES=size
        )
    return words, True


def decode_(
    values: Tensor,
    residual: Tensor,
    threshold: float,
    rows: Sequence[Tensor],
    factors: Sequence[float],
    *,
    bitmaps: bool = False,
) -> None:
    """See :func:`lightning_hier.algorithms.kernels.gtc.decode_`.

    The elements that this worker sent follow from ``values`` and the threshold.
    """
    blocks = -(-values.numel() // BLOCK)
    if blocks == 0:
        return
    words, begins = _by_block([] if bitmaps else rows, values, blocks)
    # A missing factor is 1, which changes no bits.
    first, second = (_bits64(factor) for factor in (*factors, 1.0, 1.0)[:2])
    _jit().decode[(blocks,)](
        values, residual, words, begins, values.numel(), magnitude_bits(threshold, values.dtype),
        len(begins), first, second, BLOCK=BLOCK, WORDS=_WORDS,
    )  # fmt: skip
    if bitmaps:  # plain torch: the kernel reads words only
        add_payloads_(values, rows, factors, bitmaps=True)


def _by_block(rows: Sequence[Tensor], like: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """All words, and the index of the first one of each worker and block, (workers, blocks + 1)."""
    begins = like.new_empty((len(rows), blocks + 1), dtype=torch.int64)
    if not rows:
        return like.new_empty(0, dtype=torch.int32), begins
    words = torch.cat(list(rows))
    lengths = [row.numel() for row in rows]
    offsets = torch.tensor([0, *accumulate(lengths)]).to(like.device, non_blocking=True)
    grid = (-(-(blocks + 1) // _LANES), len(rows))
    halvings = max(lengths).bit_length()
    _jit().find_begins[grid](words, offsets, begins, blocks, halvings, BLOCK=BLOCK, LANES=_LANES)
    return words, begins


def _bits64(number: float) -> int:
    """Bits of a float64 as an integer."""
    # Triton would pass a Python float to a kernel as float32.
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits
