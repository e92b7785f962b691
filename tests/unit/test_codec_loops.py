"""C loops: their compilation, the tensors that they suit, and codecs with and without them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager

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
)
from lightning_hier.algorithms.quantisation import QUANTISATION_GROUP as GROUP
from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec, QuantisedCodec
from lightning_hier.algorithms.sparse_codec import largest

SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 2e-38, 0.5, -1.0, 127.0, 3.4e38, -3.4e38]
CODECS = pytest.mark.parametrize(
    "codec", [BFloat16Codec(), QuantisedCodec(8), QuantisedCodec(4)], ids=["bf16", "int8", "int4"]
)
seeds = st.integers(0, 2**16)


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
    codec=st.sampled_from([BFloat16Codec(), QuantisedCodec(8), QuantisedCodec(4)]),
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
