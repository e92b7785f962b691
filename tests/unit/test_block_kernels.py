"""Kernels of block synchronisation: equal bits on all backends, and sums in double precision."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier.algorithms import chunks, kernels
from lightning_hier.algorithms.block_momentum import UpdateFrom, advance_
from lightning_hier.algorithms.kernels import all_finite, sum_of_squares
from lightning_hier.algorithms.kernels.native import native_kernels
from lightning_hier.algorithms.kernels.quantisation_groups import QUANTISATION_GROUP as GROUP
from lightning_hier.algorithms.kernels.reference import TorchKernels
from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec, Int4Codec, Int8Codec

SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 2e-38, 0.5, -1.0, 127.0, 3.4e38, -3.4e38]
lengths = st.integers(1, 3 * GROUP + 7)
seeds = st.integers(0, 2**16)
codecs = st.sampled_from([BFloat16Codec(), Int8Codec(), Int4Codec()])


@contextmanager
def _backend(*, native: bool) -> Iterator[None]:
    """Use the native kernels for tensors of any length, or for none."""
    if native and native_kernels() is None:
        pytest.skip("no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "SMALLEST", 0 if native else 1 << 60)
        yield


def _values(numel: int, seed: int, *special: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(numel, generator=generator)
    if special:
        chosen = torch.rand(numel, generator=generator) < 0.1
        values[chosen] = torch.tensor(random.Random(seed).choices(special, k=int(chosen.sum())))
    return values


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@given(numel=lengths, seed=seeds)
def test_sum_of_squares_is_the_same_to_the_last_digits(numel: int, seed: int) -> None:
    """The order of additions differs, so sums are equal up to rounding in double precision."""
    values = _values(numel, seed, *SPECIAL)
    expected = float(values.double().square().sum())
    with _backend(native=True):
        assert sum_of_squares(values) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    ("eta", "zeta", "nesterov", "update_from", "includes_ahead"),
    [
        *product([0.0, 0.75], [1.0, 0.3, 0.9], [True, False], ["global", "start"], [False]),
        *product([0.0, 0.75], [1.0, 0.3], [True, False], ["global"], [True]),
    ],
)
@given(numel=lengths, seed=seeds)
def test_block_momentum_gives_the_same_bits(
    eta: float,
    zeta: float,
    nesterov: bool,
    update_from: UpdateFrom,
    includes_ahead: bool,
    numel: int,
    seed: int,
) -> None:
    group = {
        "block_momentum": eta,
        "block_lr": zeta,
        "nesterov": nesterov,
        "update_from": update_from,
        "includes_ahead": includes_ahead,
    }
    start = [_values(numel, seed + i, 0.0, -0.0, 1e-40, 1e30) for i in range(3)]
    for from_updates in [True] if includes_ahead else [True, False]:
        results, squares = [], []
        for native in (False, True):
            mean, model, update = (values.clone() for values in start)
            kept = update if eta != 0.0 else None
            with _backend(native=native):
                squares.append(advance_(mean, model, kept, group, from_updates=from_updates))
            results.append(torch.cat([mean, model, update]))
        assert _same_bits(*results)
        assert squares[0] == pytest.approx(squares[1], rel=1e-12)


@given(eta=st.sampled_from([0.0, 0.75]), numel=lengths, seed=seeds)
def test_difference_from_the_start_has_the_same_bits(eta: float, numel: int, seed: int) -> None:
    model, update = _values(numel, seed + 1, 0.0, 1e30), _values(numel, seed + 2, -0.0, 1e-40)
    for own in (update, None):
        results, squares = [], []
        for native in (False, True):
            difference = _values(numel, seed, *SPECIAL)
            with _backend(native=native):
                passes = kernels.kernels_for(difference, model, own)
                squares.append(passes.subtract_start_(difference, model, own, eta))
            results.append(difference)
        assert _same_bits(*results)
        assert squares[0] == pytest.approx(squares[1], rel=1e-12)


@given(codec=codecs, blocks=st.integers(1, 4), seed=seeds, data=st.data())
def test_codecs_give_the_same_bits(
    codec: Codec, blocks: int, seed: int, data: st.DataObject
) -> None:
    numel = blocks * GROUP
    values = _values(numel, seed, *SPECIAL)
    plus = _values(data.draw(st.integers(0, numel)), seed + 1, 0.0, -1e-40)
    results = []
    for native in (False, True):
        left, sent = values.clone(), torch.zeros(codec.bytes_for(numel), dtype=torch.uint8)
        read, total = torch.empty_like(values), torch.ones(numel)
        with _backend(native=native):
            codec.encode_(left, sent, plus=plus, weight=1 / 3)
            codec.decode(sent, read)
            codec.decode(sent, total, add=True)
        results.append((left, sent.view(torch.int32), read, total))
    assert all(_same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    "codec", [BFloat16Codec(), Int8Codec(), Int4Codec()], ids=["bf16", "int8", "int4"]
)
@given(seed=seeds, below=st.floats(0.0, 0.02))
def test_finite_values_up_to_the_largest_are_decoded_as_finite(
    codec: Codec, seed: int, below: float
) -> None:
    """With the same bits from all backends, and errors that add up."""
    largest = torch.finfo(torch.float32).max
    signs = torch.randn(2 * GROUP, generator=torch.Generator().manual_seed(seed)).sign()
    values = signs * largest * (1 - below)
    values[::3] *= 0.3
    results = []
    for native, dtype in ((False, torch.float32), (True, torch.float32), (False, torch.float64)):
        # In float64, far beyond the range of a scale.
        encoded = values.clone() if dtype == torch.float32 else values.double() * 1e60
        left, read = encoded.clone(), torch.empty_like(encoded)
        sent = torch.empty(codec.bytes_for(len(values)), dtype=torch.uint8)
        with _backend(native=native):
            codec.encode_(left, sent)
            codec.decode(sent, read)
        assert read.isfinite().all() and torch.equal(left, encoded - read)
        results.append(read)
    assert _same_bits(results[0], results[1])
    assert (results[0] - values).abs().max() <= largest / 10


@pytest.mark.parametrize(
    "codec", [BFloat16Codec(), Int8Codec(), Int4Codec()], ids=["bf16", "int8", "int4"]
)
@pytest.mark.parametrize("native", [False, True], ids=["torch", "native"])
def test_nonfinite_values_are_decoded_as_nonfinite(codec: Codec, native: bool) -> None:
    """A nonfinite model must not pass the health check after it was sent."""
    for wrong in (float("nan"), float("inf")):
        values = torch.ones(2 * GROUP)
        values[7] = wrong
        sent, read = (
            torch.empty(codec.bytes_for(2 * GROUP), dtype=torch.uint8),
            torch.empty(2 * GROUP),
        )
        with _backend(native=native):
            codec.encode_(values, sent)
            codec.decode(sent, read)
        assert not read[7].isfinite()
        assert torch.equal(read[GROUP:], torch.ones(GROUP))


@given(
    rows=st.integers(1, 4),
    length=st.integers(1, 4096),
    share=st.floats(0.001, 1.0),
    magnitudes=st.sampled_from([1, 2, 7, 5000]),
    seed=seeds,
)
def test_the_largest_magnitudes_are_the_same(
    rows: int, length: int, share: float, magnitudes: int, seed: int
) -> None:
    """Of equal ones, the first are selected. NaN counts as larger than inf."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(magnitudes, (rows, length), generator=generator) - magnitudes / 2
    values[:, ::97], values[:, 1::101] = torch.nan, -torch.inf
    number = math.ceil(share * length)
    with _backend(native=True):
        selected = kernels.kernels_for(values).largest(values.view(-1), length, number)
    assert torch.equal(selected, TorchKernels().largest(values.view(-1), length, number))
    order = values.abs().sort(dim=1, descending=True, stable=True).indices[:, :number]
    assert torch.equal(selected.view(rows, number), order.sort(dim=1).values.short())


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(numel=st.integers(0, 40))
def test_squares_in_double_precision(dtype: torch.dtype, numel: int) -> None:
    """A sum in float32 would lose digits. Chunks have 7 elements."""
    values = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).mul(100).to(dtype)
    expected = math.fsum(abs(value) ** 2 for value in values.to(torch.complex128).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 7)
        assert sum_of_squares(values) == pytest.approx(expected, rel=1e-13)


@given(st.lists(st.floats(width=16), max_size=70), st.sampled_from(DTYPES))
def test_all_finite_agrees_with_torch(values: list[float], dtype: torch.dtype) -> None:
    flat = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert all_finite(flat) == bool(flat.isfinite().all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [0, 4, 999_999])
def test_nonfinite_values_are_detected(dtype: torch.dtype, bad: float, place: int) -> None:
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
