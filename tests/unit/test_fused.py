"""The Triton kernels give the bits of the plain torch form, here by Triton's interpreter."""

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

from lightning_hier.algorithms.decoding import SignedWords
from lightning_hier.algorithms.encoding import (
    Scratch,
    bits_of,
    encode_,
    encode_by_torch_,
    settle_,
)

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


def _compare(numel: int, dtype: torch.dtype, threshold: float, kernels: Any) -> None:
    gradient, residual = _gradients(numel, dtype, seed=numel)
    values, expected = gradient.clone(), gradient.clone()
    limit, infinity = bits_of(threshold, dtype)
    words, finite = kernels.encode_(values, residual, limit, infinity)
    expected_words, _ = encode_by_torch_(expected, residual, threshold)
    assert finite
    assert _same_bits(words, expected_words)
    assert _same_bits(values, expected)
    other = encode_by_torch_(-gradient, residual, threshold)[0]
    rows, kept, expected_kept = [words, other, words], residual.clone(), residual.clone()
    factors = [threshold / len(rows), 1024.0]
    kernels.settle_(values, kept, limit, rows, factors)
    settle_(expected, expected_kept, words, threshold, SignedWords(rows, expected), factors)
    assert _same_bits(kept, expected_kept)
    assert _same_bits(values, expected)
    kernels.settle_(values, kept, limit, [], [])
    assert not values.any()


def by_interpreter() -> None:
    from lightning_hier.algorithms import fused

    fused.BLOCK = 64
    for dtype in DTYPES[:3]:  # the interpreter cuts off where a device rounds to bfloat16
        for numel in (0, 1, 63, 64, 65, 200):
            for threshold in (1e-3, 0.5, 100.0):
                _compare(numel, dtype, threshold, fused)
        for bad in (math.nan, math.inf, -math.inf):
            for threshold in (0.5, 1e300):
                values = torch.ones(130, dtype=dtype)
                values[100] = bad
                ones, bits = torch.ones(130, dtype=dtype), bits_of(threshold, dtype)
                assert not fused.encode_(values, ones, *bits)[1]


def test_kernels_give_the_bits_of_plain_torch() -> None:
    """In a process of its own: Triton reads the environment when it is imported."""
    call = "from tests.unit.test_fused import by_interpreter; by_interpreter()"
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
        gradient, residual = _gradients(numel, dtype, seed=numel)
        on_gpu = gradient.cuda(), residual.cuda()
        words, _ = encode_(gradient, residual, 0.7, Scratch())
        gpu_words, finite = encode_(*on_gpu, 0.7, Scratch())
        assert finite
        assert _same_bits(gpu_words.cpu(), words)
        rows, factors = [words, words[::2].clone()], [0.35]
        settle_(gradient, residual, words, 0.7, SignedWords(rows, gradient), factors)
        gpu_rows = [row.cuda() for row in rows]
        settle_(*on_gpu, gpu_words, 0.7, SignedWords(gpu_rows, on_gpu[0]), factors)
        assert _same_bits(on_gpu[1].cpu(), residual)
        assert _same_bits(on_gpu[0].cpu(), gradient)
