"""Passes of block momentum as Triton kernels; :mod:`triton_backend` launches them.

They round as plain torch does, which adds a multiple in one operation, so the results have the same
bits on every device. Each program adds the squares of its elements in double precision.
"""

# Triton compiles the source of the kernels, a language of its own without types for mypy.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _from_bits(bits, like):
    """The float64 with these bits for each element of ``like``, in its type."""
    number = bits.to(tl.int64).to(tl.float64, bitcast=True)
    return tl.zeros_like(like) + number.to(like.dtype)


@triton.jit
def _store_squares(squares, x):
    """Store the sum of squares of the elements of this program."""
    wide = x.to(tl.float64)
    tl.store(squares + tl.program_id(0), tl.sum(wide * wide, 0))


@triton.jit
def sum_of_squares(values, squares, numel, BLOCK: tl.constexpr):
    """Sums of squares only."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _store_squares(squares, tl.load(values + index, mask=index < numel, other=0.0))


@triton.jit(do_not_specialize=["minus_eta"])
def subtract_start(
    model, global_model, update, squares, numel, minus_eta,
    HAS_UPDATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Subtract W, and eta * Delta if there is a Delta, from ``model``. ``minus_eta`` is -eta."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    x = tl.load(model + index, mask=inside, other=0.0)
    x -= tl.load(global_model + index, mask=inside, other=0.0)
    if HAS_UPDATE:
        x = tl.fma(_from_bits(minus_eta, x), tl.load(update + index, mask=inside, other=0.0), x)
    tl.store(model + index, x, mask=inside)
    _store_squares(squares, x)


@triton.jit(do_not_specialize=["eta", "zeta"])
def advance(
    mean, global_model, update, squares, numel, eta, zeta,
    HAS_UPDATE: tl.constexpr, AHEAD: tl.constexpr, ADDS_UPDATE: tl.constexpr,
    SCALES: tl.constexpr, ZETA_AT_LEAST_HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One synchronisation from the mean model.

    ``SCALES`` is whether zeta is not 1, ``ZETA_AT_LEAST_HALF`` whether it is at least 0.5.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    x = tl.load(mean + index, mask=inside, other=0.0)
    start = tl.load(global_model + index, mask=inside, other=0.0)
    _store_squares(squares, x)
    old = tl.zeros_like(x)
    if HAS_UPDATE:
        old = tl.load(update + index, mask=inside, other=0.0)
    if AHEAD:
        start = tl.fma(_from_bits(eta, start), old, start)
    moved, w = x - start, x
    if SCALES:
        by = _from_bits(zeta, x)
        w = tl.fma(by - 1, moved, x) if ZETA_AT_LEAST_HALF else tl.fma(by, moved, start)
        moved = by * moved
    if ADDS_UPDATE:
        w = tl.fma(_from_bits(eta, w), old, w)
    if HAS_UPDATE:
        moved = tl.fma(_from_bits(eta, moved), old, moved)
        tl.store(update + index, moved, mask=inside)
    tl.store(global_model + index, w, mask=inside)
    if AHEAD:
        w = tl.fma(_from_bits(eta, w), moved, w)
    tl.store(mean + index, w, mask=inside)
    _store_squares(squares + tl.num_programs(0), moved)


@triton.jit(do_not_specialize=["eta", "zeta"])
def advance_by(
    gradient, global_model, update, squares, numel, eta, zeta,
    HAS_UPDATE: tl.constexpr, AHEAD: tl.constexpr, ADDS_UPDATE: tl.constexpr,
    SCALES: tl.constexpr, INSIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One synchronisation from the mean local update. ``SCALES`` is whether zeta is not 1."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    moved = tl.load(gradient + index, mask=inside, other=0.0)
    w = tl.load(global_model + index, mask=inside, other=0.0)
    _store_squares(squares, moved)
    if SCALES:
        moved = _from_bits(zeta, moved) * moved
    if HAS_UPDATE:
        old = tl.load(update + index, mask=inside, other=0.0)
        if ADDS_UPDATE:
            w = tl.fma(_from_bits(eta, w), old, w)
        new = tl.fma(_from_bits(eta, moved), old, moved)
        tl.store(update + index, new, mask=inside)
        moved = tl.fma(_from_bits(eta, moved), new, moved) if INSIDE else new
    w += moved
    tl.store(global_model + index, w, mask=inside)
    if AHEAD:
        w = tl.fma(_from_bits(eta, w), moved, w)
    tl.store(gradient + index, w, mask=inside)
    _store_squares(squares + tl.num_programs(0), moved)
