"""The Triton kernels return the bits of plain torch, on CPUs with Triton's interpreter."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import gtc, triton_backend
from lightning_hier.algorithms.kernels.payload import words_to_bitmap

pytest.importorskip("triton")

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def _gradients(numel: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    gradient, residual = torch.randn(2, numel, generator=generator).to(dtype)
    for place, value in enumerate([0.0, -0.0, 1e-45, 0.5, -0.5, 1.0, -1.0]):
        gradient[place::11], residual[place::11] = value, -0.0
    return gradient, residual


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or len(one) != len(other):
        return False
    return not len(one) or torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def _compare(numel: int, dtype: torch.dtype, threshold: float, device: str = "cpu") -> None:
    gradient, residual = _gradients(numel, dtype, seed=numel)
    values, device_residual = gradient.to(device, copy=True), residual.to(device, copy=True)
    words, finite = triton_backend.encode_(values, device_residual, threshold, scale=2.0)
    expected, expected_residual = gradient.clone(), residual.clone()
    expected_words, _ = gtc.encode_(expected, residual, threshold, scale=2.0)
    assert finite
    assert _same_bits(words.cpu(), expected_words)
    assert _same_bits(values.cpu(), expected)
    other, _ = gtc.encode_(-gradient, residual, threshold)
    rows = [expected_words, other, expected_words]
    factors = [threshold / len(rows), 1024.0]
    for bitmaps in (False, True):
        sent = [words_to_bitmap(row, numel) for row in rows] if bitmaps else rows
        arguments = threshold, [row.to(device) for row in sent], factors
        mean, expected_mean = values.clone(), expected.clone()
        triton_backend.decode_(mean, device_residual, *arguments, bitmaps=bitmaps)
        arguments = threshold, sent, factors
        gtc.decode_(expected_mean, expected_residual, expected_words, *arguments, bitmaps=bitmaps)
        assert _same_bits(device_residual.cpu(), expected_residual)
        assert _same_bits(mean.cpu(), expected_mean)
    triton_backend.decode_(values, device_residual, threshold, [], [])
    assert not values.any()


def by_interpreter() -> None:
    triton_backend.BLOCK = 64
    assert triton_backend.runs_on(torch.device("cpu"))
    _compare(0, torch.float32, 0.5)
    _compare(130, torch.float32, 0.5)
    _compare(64, torch.float16, 1e-3)  # it truncates to bfloat16, where a device rounds
    for bad, threshold in ((math.nan, 0.5), (-math.inf, 1e300)):
        values, ones = torch.ones(2, 130)
        values[100] = bad
        assert not triton_backend.encode_(values, ones, threshold)[1]


def test_kernels_give_the_bits_of_plain_torch() -> None:
    """The test runs a process, because Triton reads the environment when it is imported."""
    call = "from tests.unit.test_triton_kernels import by_interpreter; by_interpreter()"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", call],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_on_a_device_give_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    for numel in (1, 1023, 1025, 300_001):
        _compare(numel, dtype, 0.7, "cuda")


def test_kernels_that_do_not_run_on_this_host_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton compiles its driver at the first launch, which fails here."""

    def broken(*names: str) -> Any:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(triton_backend, "_jit", broken)
    triton_backend.runs_on.cache_clear()
    with pytest.warns(UserWarning, match="Failed to find C compiler.*Plain torch.*needs a C comp"):
        assert not triton_backend.runs_on(torch.device("cpu"))
    assert not triton_backend.runs_on(torch.device("cpu"))  # tried and reported once
    triton_backend.runs_on.cache_clear()
