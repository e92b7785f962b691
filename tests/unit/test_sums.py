"""Sums of squares and checks for NaN, whatever lies in the tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.algorithms import chunks
from lightning_hier.algorithms.kernels import all_finite, sum_of_squares

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(numel=st.integers(0, 40))
def test_squares_in_double_precision(dtype: torch.dtype, numel: int) -> None:
    """Values that float32 could not add up; chunks of 7 elements."""
    values = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).mul(100).to(dtype)
    expected = math.fsum(abs(value) ** 2 for value in values.to(torch.complex128).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 7)
        assert sum_of_squares(values) == pytest.approx(expected, rel=1e-13)


def test_a_large_value_does_not_hide_small_ones() -> None:
    values = torch.tensor([1e6, 1.0, 1.0])
    assert sum_of_squares(values) == 1e12 + 2


@given(st.lists(st.floats(width=16), max_size=70), st.sampled_from(DTYPES))
def test_finite_as_torch_says(values: list[float], dtype: torch.dtype) -> None:
    flat = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert all_finite(flat) == bool(flat.isfinite().all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [0, 4, 999_999])
def test_what_is_not_finite_is_found(dtype: torch.dtype, bad: float, place: int) -> None:
    values = torch.ones(1_000_000).to(dtype)
    assert all_finite(values)
    values[place] = bad
    assert not all_finite(values)
    assert not math.isfinite(sum_of_squares(values))


def test_the_largest_values_are_finite() -> None:
    """Their squares are beyond the range of their dtype."""
    values = torch.full((3,), torch.finfo(torch.float32).max)
    assert all_finite(values)
    assert math.isfinite(sum_of_squares(values))


def test_nothing_and_whole_numbers_are_finite() -> None:
    assert all_finite(torch.empty(0)) and all_finite(torch.tensor([1, 2]))
