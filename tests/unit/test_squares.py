"""Sums of squares, and whether all values are finite, in every dtype."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.algorithms import chunks
from lightning_hier.algorithms.squares import all_finite, sum_of_squares

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(numel=st.integers(0, 40))
def test_sum_of_squares(dtype: torch.dtype, numel: int) -> None:
    """Chunks have 7 elements. Squares of short dtypes are beyond their range."""
    values = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).mul(1e3).to(dtype)
    expected = math.fsum(abs(value) ** 2 for value in values.to(torch.complex128).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 7)
        assert sum_of_squares(values) == pytest.approx(expected, rel=1e-6)


@given(st.lists(st.floats(width=16), max_size=70), st.sampled_from(DTYPES))
def test_all_finite_agrees_with_torch(values: list[float], dtype: torch.dtype) -> None:
    flat = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert all_finite(flat) == bool(flat.isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nonfinite_values_are_detected(dtype: torch.dtype) -> None:
    values = torch.ones(100_000).to(dtype)
    assert all_finite(values)
    for place, bad in ((0, math.nan), (4, math.inf), (99_999, -math.inf)):
        values[place] = bad
        assert not all_finite(values)
        assert not math.isfinite(sum_of_squares(values))
        values[place] = 1.0


def test_the_largest_values_are_finite() -> None:
    """Their squares are beyond the range of their dtype."""
    values = torch.full((3,), torch.finfo(torch.float32).max)
    assert all_finite(values)
    assert math.isfinite(sum_of_squares(values))
