"""C loops: their compilation, the tensors that they suit, and codecs with and without them."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier.algorithms.kernels import native
from lightning_hier.algorithms.kernels.native import (
    SMALLEST,
    compiled_loops,
    loops_for,
    prepare_loops,
)
from lightning_hier.algorithms.quantisation import QUANTISATION_GROUP as GROUP
from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec, Int4Codec, Int8Codec
from lightning_hier.algorithms.sparse_codec import largest

SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 2e-38, 0.5, -1.0, 127.0, 3.4e38, -3.4e38]
CODECS = pytest.mark.parametrize(
    "codec", [BFloat16Codec(), Int8Codec(), Int4Codec()], ids=["bf16", "int8", "int4"]
)
seeds = st.integers(0, 2**16)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@contextmanager
def _loops(*, used: bool) -> Iterator[None]:
    """Use the loops for tensors of any length, or for none."""
    if used and compiled_loops() is None:
        pytest.skip("no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "SMALLEST", 0 if used else 1 << 60)
        yield


def _values(numel: int, seed: int, *special: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(numel, generator=generator)
    chosen = torch.rand(numel, generator=generator) < 0.1
    values[chosen] = torch.tensor(random.Random(seed).choices(special, k=int(chosen.sum())))
    return values


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@given(
    codec=st.sampled_from([BFloat16Codec(), Int8Codec(), Int4Codec()]),
    blocks=st.integers(1, 4),
    seed=seeds,
    data=st.data(),
)
def test_codecs_give_the_same_bits(
    codec: Codec, blocks: int, seed: int, data: st.DataObject
) -> None:
    numel = blocks * GROUP
    values = _values(numel, seed, *SPECIAL)
    plus = _values(data.draw(st.integers(0, numel)), seed + 1, 0.0, -1e-40)
    results = []
    for used in (False, True):
        left, sent = values.clone(), torch.zeros(codec.bytes_for(numel), dtype=torch.uint8)
        read, total = torch.empty_like(values), torch.ones(numel)
        with _loops(used=used):
            codec.encode_(left, sent, plus=plus, weight=1 / 3)
            codec.decode(sent, read)
            codec.decode(sent, total, add=True)
        results.append((left, sent.view(torch.int32), read, total))
    assert all(_same_bits(one, other) for one, other in zip(*results, strict=True))


@CODECS
@given(seed=seeds, below=st.floats(0.0, 0.02))
def test_finite_values_up_to_the_largest_are_decoded_as_finite(
    codec: Codec, seed: int, below: float
) -> None:
    """With errors that add up."""
    limit = torch.finfo(torch.float32).max
    signs = torch.randn(2 * GROUP, generator=torch.Generator().manual_seed(seed)).sign()
    values = signs * limit * (1 - below)
    values[::3] *= 0.3
    results = []
    for used, dtype in ((False, torch.float32), (True, torch.float32), (False, torch.float64)):
        # In float64, far beyond the range of a scale.
        encoded = values.clone() if dtype == torch.float32 else values.double() * 1e60
        left, read = encoded.clone(), torch.empty_like(encoded)
        sent = torch.empty(codec.bytes_for(len(values)), dtype=torch.uint8)
        with _loops(used=used):
            codec.encode_(left, sent)
            codec.decode(sent, read)
        assert read.isfinite().all() and torch.equal(left, encoded - read)
        results.append(read)
    assert _same_bits(results[0], results[1])
    assert (results[0] - values).abs().max() <= limit / 10


@CODECS
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nonfinite_values_are_decoded_as_nonfinite(codec: Codec, wrong: float) -> None:
    """A nonfinite model must not pass the health check after it was sent."""
    values, read = torch.ones(2 * GROUP), torch.empty(2 * GROUP)
    values[7] = wrong
    sent = torch.empty(codec.bytes_for(2 * GROUP), dtype=torch.uint8)
    with _loops(used=True):
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
def test_the_largest_magnitudes_are_selected(
    rows: int, length: int, share: float, magnitudes: int, seed: int
) -> None:
    """Of equal ones, the first are selected. NaN counts as larger than inf."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(magnitudes, (rows, length), generator=generator) - magnitudes / 2
    values[:, ::97], values[:, 1::101] = torch.nan, -torch.inf
    number = math.ceil(share * length)
    order = values.abs().sort(dim=1, descending=True, stable=True).indices[:, :number]
    for used in (False, True):
        with _loops(used=used):
            selected = largest(values.view(-1), length, number)
        assert torch.equal(selected.view(rows, number), order.sort(dim=1).values.short())


@pytest.fixture
def _forget() -> Iterator[None]:
    native._compiled.cache_clear()
    yield
    native._compiled.cache_clear()


@pytest.mark.usefixtures("_forget")
@pytest.mark.parametrize(
    ("name", "value"),
    [("LIGHTNING_HIER_COMPILE", "0"), ("CC", "no-such-compiler"), ("CC", "false")],
    ids=["forbidden", "none", "fails"],
)
def test_there_are_no_loops_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert loops_for(torch.empty(SMALLEST)) is None


@needs_compiler
@pytest.mark.usefixtures("_forget")
def test_only_large_contiguous_float32_tensors_suit_the_loops() -> None:
    large = torch.empty(SMALLEST)
    strided = torch.empty(2 * SMALLEST)[::2]
    for others in [(large[1:],), (large.double(),), (large, large.double()), (strided,)]:
        assert loops_for(*others) is None
    assert native._compiled.cache_info().currsize == 0
    assert loops_for(large) is loops_for(large, None) is not None


@needs_compiler
@pytest.mark.usefixtures("_forget")
def test_loops_are_compiled_once_at_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    run = subprocess.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return run(*args, **kwargs)

    monkeypatch.setattr(subprocess, "run", counted)
    prepare_loops([torch.empty(SMALLEST - 1)])
    prepare_loops([torch.empty(SMALLEST, dtype=torch.float64)])
    assert not calls
    prepare_loops([torch.empty(SMALLEST // 2), torch.empty(SMALLEST // 2)])
    assert loops_for(torch.empty(SMALLEST)) is not None
    assert len(calls) == 1
