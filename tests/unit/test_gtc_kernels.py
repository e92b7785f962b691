"""GTC's passes return the bits of the paper's equations, with and without C loops."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier.algorithms import chunks
from lightning_hier.algorithms.kernels import gtc, native
from lightning_hier.algorithms.kernels.gtc import decode_, encode_
from lightning_hier.algorithms.kernels.payload import SIGN_BIT, words_to_bitmap
from lightning_hier.reference.workers import send

SMALL_CHUNK = 64

# Values that comparisons, additions or bit operations may treat wrongly.
SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 0.5, -0.5, 1.0, -1.0, 3.4e38, -3.4e38]
dtypes = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


@pytest.fixture(autouse=True, params=["torch", "loops"], scope="module")
def _backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """With and without loops, in small chunks: small tensors have many chunk boundaries."""
    if request.param == "loops" and native.compiled_loops() is None:
        pytest.skip("no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", SMALL_CHUNK)
        patch.setattr(gtc, "PIECE", 2 * SMALL_CHUNK)
        patch.setattr(native, "SMALLEST", 0 if request.param == "loops" else 1 << 60)
        yield


def _gradient(seed: int, numel: int, dtype: torch.dtype, special: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(numel, generator=generator, dtype=torch.float64)
    chosen = torch.rand(numel, generator=generator) < special
    picked = random.Random(seed).choices(SPECIAL, k=int(chosen.sum()))
    values[chosen] = torch.tensor(picked, dtype=torch.float64)
    return values.to(dtype)


def _expected(gradient: Tensor, residual: Tensor, threshold: float) -> tuple[list[int], Tensor]:
    """Words and next residual of the reference, with the threshold in the dtype of the gradient."""
    rounded = float(torch.tensor(threshold, dtype=gradient.dtype))
    quantum = min(rounded, torch.finfo(gradient.dtype).max)
    total, next_residual = gradient + residual, residual.clone()
    send(next_residual, gradient, quantum)
    sent = (total.abs() > quantum).nonzero().view(-1).tolist()
    return [i - SIGN_BIT if total[i] < 0 else i for i in sent], next_residual


def _bits(values: Tensor) -> list[int]:
    """Bits of each element. NaN equals itself, and -0.0 differs from 0.0."""
    return values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize]).tolist()


@given(
    numel=st.one_of(
        st.integers(0, 9), st.sampled_from([63, 64, 65, 127, 128, 129]), st.integers(10, 300)
    ),
    threshold=st.sampled_from([1e-30, 1e-3, 0.3, 0.5, 1.0, 2.5, 1e30]),
    special=st.sampled_from([0.0, 0.2, 1.0]),
    dtype=dtypes,
    seed=st.integers(0, 2**16),
)
def test_words_residual_and_mean_are_those_of_the_equations(
    numel: int, threshold: float, special: float, dtype: torch.dtype, seed: int
) -> None:
    gradient = _gradient(seed, numel, dtype, special)
    residual = _gradient(seed + 1, numel, dtype, special / 2)
    nonfinite = ~(gradient + residual).isfinite()
    gradient[nonfinite], residual[nonfinite] = 0.0, 0.0
    expected, next_residual = _expected(gradient, residual, threshold)
    values, before = gradient.clone(), residual.clone()
    words, finite = encode_(values, residual, threshold)
    assert finite
    assert words.dtype == torch.int32
    assert words.tolist() == expected
    assert _bits(values) == _bits(gradient + residual)
    assert _bits(residual) == _bits(before)
    decode_(values, residual, words, threshold, [], [])
    assert _bits(residual) == _bits(next_residual)
    assert _bits(values) == [0] * numel


@given(
    numel=st.integers(1, 300),
    place=st.integers(0, 299),
    bad=st.sampled_from([math.nan, -math.nan, math.inf, -math.inf]),
    threshold=st.sampled_from([1e-30, 1.0, 1e39, 1e300]),
    dtype=dtypes,
)
def test_nonfinite_values_are_detected_at_any_place(
    numel: int, place: int, bad: float, threshold: float, dtype: torch.dtype
) -> None:
    """Some of the thresholds cannot be represented in the dtype."""
    for poisoned in range(2):
        gradient, residual = torch.ones(2, numel, dtype=dtype)
        (gradient, residual)[poisoned][place % numel] = bad
        _, finite = encode_(gradient, residual, threshold)
        assert not finite


@given(
    numel=st.integers(1, 300),
    workers=st.integers(1, 5),
    density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    bitmaps=st.booleans(),
    dtype=dtypes,
    scale=st.sampled_from([1.0, 1024.0, 3.0]),
    seed=st.integers(0, 2**16),
)
def test_mean_is_that_of_the_signs_in_both_encodings(
    numel: int,
    workers: int,
    density: float,
    bitmaps: bool,
    dtype: torch.dtype,
    scale: float,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randn(workers, numel, generator=generator).sign()
    signs *= torch.rand(workers, numel, generator=generator) < density
    words = [encode_(own.clone(), own * 0, 0.5)[0] for own in signs]
    rows = [words_to_bitmap(row, numel) for row in words] if bitmaps else words
    values, threshold = torch.zeros(numel, dtype=dtype), 0.37
    factors = [threshold / workers, scale]
    decode_(values, values.clone(), words[0], threshold, rows, factors, bitmaps=bitmaps)
    expected = signs.sum(0).to(dtype) * (threshold / workers) * scale
    assert _bits(values) == _bits(expected + 0.0)


@pytest.mark.parametrize("kind", ["double", "strided"])
def test_residual_of_another_dtype_or_layout_than_the_gradient(kind: str) -> None:
    gradient, plain = _gradient(1, 200, torch.float32, 0.0), _gradient(2, 200, torch.float32, 0.0)
    other = plain.double() if kind == "double" else torch.stack([plain, -plain], dim=1)[:, 0]
    for residual in (plain, other):
        values = gradient.clone()
        words, finite = encode_(values, residual, 0.5)
        assert finite
        decode_(values, residual, words, 0.5, [words], [0.5])
        if residual is plain:
            expected = words, values
    assert torch.equal(words, expected[0])
    assert torch.equal(values, expected[1])
    assert torch.allclose(plain, other.float(), rtol=0, atol=1e-6)


def test_sum_that_overflows_is_detected() -> None:
    gradient, residual = torch.full((2, 70), 3e38)
    assert not encode_(gradient, residual, 1.0)[1]
