"""Fingerprints of tensors change with any bit, also if sums and norms do not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_hier.algorithms.fingerprint import fingerprints

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool]


def _values(dtype: torch.dtype) -> Tensor:
    """A tensor with more elements than are read at a time."""
    drawn = torch.randn(70001, generator=torch.Generator().manual_seed(3))
    return drawn > 0 if dtype == torch.bool else (drawn * 100).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_are_equal_and_changes_are_not(dtype: torch.dtype) -> None:
    values = _values(dtype)
    (own,) = fingerprints([values])
    assert fingerprints([values.clone(), values.reshape(1, -1)]) == [own, own]
    exchanged = values.clone()
    exchanged[[0, -1]] = exchanged[[-1, 0]]
    changed = [values.flip(0), exchanged if values[0] != values[-1] else ~values]
    one_more = values.clone()
    one_more[65536] = ~one_more[65536] if dtype == torch.bool else one_more[65536] + 1
    for other in (*changed, one_more):
        assert fingerprints([other]) != [own]


def test_signs_and_nan_and_memory_formats() -> None:
    values = _values(torch.float32)[:69984].reshape(6, 8, 27, 54)
    (own,) = fingerprints([values])
    assert fingerprints([-values]) != [own]
    nan = torch.full((5,), torch.nan)
    assert fingerprints([nan]) == fingerprints([nan.clone()])
    assert fingerprints([values.to(memory_format=torch.channels_last)]) == [own]
    assert fingerprints([torch.tensor(0.0), torch.empty(0)]) == [0, 0]
    assert fingerprints([torch.tensor(-0.0)]) != [0]
    assert fingerprints([]) == []
