"""GTC's passes as Triton kernels; :mod:`triton_backend` launches them.

Magnitudes are compared as integers, by their bits, where NaN exceeds infinity. 16-bit numbers are
added in float32 and rounded once, as torch does.
"""

# Triton compiles the source of the kernels, a language of its own without types for mypy.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"

from __future__ import annotations

import triton
import triton.language as tl

PER_CODE = 16
"""Elements per code, with two bits each."""

UNSOUND = 1 << 32
"""Count of a block whose values are not all finite, larger than any number of words."""

_PER_CODE = tl.constexpr(PER_CODE)
_UNSOUND = tl.constexpr(UNSOUND)
_INDEX = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _wide(x):
    """Convert to float32 if shorter."""
    return x.to(tl.float32) if x.dtype.primitive_bitwidth < 32 else x


@triton.jit
def _whole(x):
    """Reinterpret the bits as an integer of the same width."""
    width: tl.constexpr = x.dtype.primitive_bitwidth
    if width == 64:
        return x.to(tl.int64, bitcast=True)
    elif width == 32:
        return x.to(tl.int32, bitcast=True)
    else:
        return x.to(tl.int16, bitcast=True)


@triton.jit
def _magnitude(x):
    """Bits without the sign."""
    bits = _whole(x)
    most: tl.constexpr = (1 << (x.dtype.primitive_bitwidth - 1)) - 1
    return bits & most


@triton.jit
def _number(bits, like):
    """Reinterpret bits as a number of the type of ``like``."""
    return bits.to(_whole(like).dtype).to(like.dtype, bitcast=True)


@triton.jit
def _product(x, factor):
    """``x`` times the float64 whose bits are ``factor``, rounded as torch rounds."""
    by = factor.to(tl.int64).to(tl.float64, bitcast=True)
    wide = _wide(x)
    return (wide * by.to(wide.dtype)).to(x.dtype)


@triton.jit(do_not_specialize=["limit", "infinity"])
def add_and_select(
    values, residual, codes, counts, numel, limit, infinity, BLOCK: tl.constexpr
):  # fmt: skip
    """Add the residual to the gradient in ``values``, and encode selected elements in two bits."""
    program = tl.program_id(0).to(tl.int64)
    index = program * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    g = _wide(tl.load(values + index, mask=inside, other=0.0))
    r = _wide(tl.load(residual + index, mask=inside, other=0.0))
    v = (g + r).to(values.dtype.element_ty)
    tl.store(values + index, v, mask=inside)
    magnitude = _magnitude(v)
    selected = magnitude > limit.to(magnitude.dtype)
    sound = tl.max((magnitude >= infinity.to(magnitude.dtype)).to(tl.int32), 0) == 0
    code = tl.where(selected, tl.where(v < 0, 2, 1), 0)
    code = tl.reshape(code, (BLOCK // _PER_CODE, _PER_CODE))
    code = tl.sum(code << (2 * tl.arange(0, _PER_CODE))[None, :], axis=1)
    place = program * (BLOCK // _PER_CODE) + tl.arange(0, BLOCK // _PER_CODE)
    tl.store(codes + place, code)
    count = tl.sum(selected.to(tl.int32), 0).to(tl.int64)
    tl.store(counts + program, tl.where(sound, count, _UNSOUND))


@triton.jit
def write_words(codes, counts, ends, words, numel, BLOCK: tl.constexpr, CODES: tl.constexpr):
    """Write the words of some codes behind the words of the preceding blocks."""
    place = tl.program_id(0) * CODES + tl.arange(0, CODES)
    packed = tl.load(codes + place, mask=place < numel, other=0)
    # One bit per sent element, then a population count by sums of growing width.
    sent = (packed | (packed >> 1)) & 0x55555555
    sent = (sent & 0x33333333) + ((sent >> 2) & 0x33333333)
    sent = (sent + (sent >> 4)) & 0x0F0F0F0F
    sent = (sent * 0x01010101) >> 24
    block = tl.program_id(0) * CODES // (BLOCK // _PER_CODE)
    words += tl.load(ends + block) - tl.load(counts + block)
    rank = tl.cumsum(sent, 0) - sent
    first = _PER_CODE * place
    for element in tl.static_range(_PER_CODE):
        code = packed >> (2 * element)
        # The upper of the two bits is the sign bit.
        word = (first + element) | ((code & 2) << 30)
        there = (code & 3) > 0
        tl.store(words + rank, word, mask=there)
        rank += there.to(tl.int32)


@triton.jit(do_not_specialize=["blocks", "halvings"])
def find_begins(
    words, offsets, begins, blocks, halvings, BLOCK: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Find the first word of each block in a worker's sorted words, by binary search."""
    worker = tl.program_id(1)
    block = tl.program_id(0) * LANES + tl.arange(0, LANES)
    first = block.to(tl.int64) * BLOCK
    low = tl.zeros((LANES,), dtype=tl.int64) + tl.load(offsets + worker)
    high = tl.zeros((LANES,), dtype=tl.int64) + tl.load(offsets + worker + 1)
    while halvings > 0:
        halvings -= 1
        middle = (low + high) // 2
        searching = low < high
        index = tl.load(words + middle, mask=searching, other=0) & _INDEX
        before = index.to(tl.int64) < first
        low = tl.where(searching & before, middle + 1, low)
        high = tl.where(searching & ~before, middle, high)
    tl.store(begins + worker * (blocks + 1) + block, low, mask=block <= blocks)


@triton.jit(do_not_specialize=["limit", "workers", "first", "second"])
def decode(
    values, residual, words, begins, numel, limit, workers, first, second,
    BLOCK: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Update the residual, and replace ``values`` by the sum of all signs times two factors."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.num_programs(0)
    index = program * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    v = tl.load(values + index, mask=inside, other=0.0)
    magnitude = _magnitude(v)
    quantum = _wide(_number(limit, v))
    wide = _wide(v)
    kept = tl.where(
        magnitude > limit.to(magnitude.dtype), wide - tl.where(v < 0, -quantum, quantum), wide
    )
    tl.store(residual + index, kept.to(residual.dtype.element_ty), mask=inside)
    tl.store(values + index, tl.zeros((BLOCK,), dtype=values.dtype.element_ty), mask=inside)
    touched = tl.zeros((), dtype=tl.int64)
    row = begins + program
    while workers > 0:
        workers -= 1
        # Other threads of this program have written the elements that are read here.
        tl.debug_barrier()
        begin = tl.load(row)
        end = tl.load(row + 1)
        row += blocks + 1
        touched += end - begin
        while begin < end:
            place = begin + tl.arange(0, WORDS)
            begin += WORDS
            there = place < end
            word = tl.load(words + place, mask=there, other=0)
            target = values + (word & _INDEX).to(tl.int64)
            # The indices of a worker are distinct, so no other thread writes to this element.
            signs = _wide(tl.load(target, mask=there, other=0.0))
            signs += tl.where(word < 0, -1.0, 1.0).to(signs.dtype)
            tl.store(target, signs.to(values.dtype.element_ty), mask=there)
    if touched > 0:
        tl.debug_barrier()
        mean = tl.load(values + index, mask=inside, other=0.0)
        mean = _product(_product(mean, first), second)
        tl.store(values + index, mean, mask=inside)
