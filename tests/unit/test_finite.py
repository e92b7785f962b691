"""NaN and inf are seen wherever they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.parameter_server.finite import is_finite

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@given(st.lists(st.floats(width=16), max_size=70), st.sampled_from(DTYPES))
def test_as_isfinite(values: list[float], dtype: torch.dtype) -> None:
    flat = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert is_finite(flat) == bool(flat.isfinite().all())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 500_000, 999_999])
def test_one_among_many(wrong: float, place: int) -> None:
    flat = torch.zeros(1_000_000)
    assert is_finite(flat)
    flat[place] = wrong
    assert not is_finite(flat)
