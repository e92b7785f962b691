"""Quantisation: decoded values and errors add up to the encoded values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier.algorithms.quantisation import (
    INT4_GROUP,
    BFloat16Codec,
    Codec,
    ExactCodec,
    QuantisedCodec,
)
from lightning_hier.algorithms.quantisation import QUANTISATION_GROUP as GROUP
from lightning_hier.algorithms.sparse_codec import SELECTION_BLOCK, SparseCodec

CODECS = pytest.mark.parametrize(
    "codec",
    [
        BFloat16Codec(),
        QuantisedCodec(8),
        QuantisedCodec(4),
        ExactCodec(torch.float64),
        SparseCodec(QuantisedCodec(4), 0.3),
        SparseCodec(ExactCodec(torch.float64), 0.1),
    ],
    ids=["bf16", "int8", "int4", "exact", "sparse int4", "sparse exact"],
)
groups = st.integers(1, 5)
seeds = st.integers(0, 2**16)


def _values(number: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Quantisation groups of very different magnitudes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(number, GROUP, dtype=torch.float64, generator=generator)
    sizes = 10.0 ** torch.randint(-9, 6, (number, 1), generator=generator)
    sizes[torch.rand(number, 1, generator=generator) < 0.2] = 0.0
    return (rows * sizes).view(-1).to(dtype)


def _code(codec: Codec, values: Tensor) -> tuple[Tensor, Tensor]:
    """Decoded values, and errors."""
    data = torch.full((codec.bytes_for(values.numel()),), 77, dtype=torch.uint8)
    errors, decoded = values.clone(), torch.full_like(values, math.nan)
    codec.encode_(errors, data)
    codec.decode(data, decoded)
    return decoded, errors


@CODECS
@given(number=groups, seed=seeds)
def test_decoded_value_and_error_add_up_to_the_value(codec: Codec, number: int, seed: int) -> None:
    for dtype in (torch.float64, torch.float32):
        values = _values(number, seed, dtype)
        decoded, errors = _code(codec, values)
        assert torch.equal(errors, values - decoded)


@pytest.mark.parametrize(
    ("codec", "group", "levels", "rounding"),
    [(QuantisedCodec(8), GROUP, 127, 1e-4), (QuantisedCodec(4), INT4_GROUP, 7, 1e-6)],
    ids=["int8", "int4"],
)
@given(number=groups, seed=seeds)
def test_error_of_a_quantised_value_is_at_most_half_a_step(
    codec: Codec, group: int, levels: int, rounding: float, number: int, seed: int
) -> None:
    """The step follows from the largest value of the quantisation group."""
    rows = _values(number, seed).view(-1, group)
    _, errors = _code(codec, rows.view(-1))
    steps = rows.abs().amax(1, keepdim=True) / levels
    assert (errors.view(-1, group).abs() <= steps * (0.5 + rounding)).all()


@given(number=groups, seed=seeds)
def test_error_of_bfloat16_is_at_most_a_256th(number: int, seed: int) -> None:
    values = _values(number, seed)
    _, errors = _code(BFloat16Codec(), values)
    assert (errors.abs() <= values.abs() * 2.0**-8).all()


@CODECS
def test_values_at_both_ends_of_the_range(codec: Codec) -> None:
    """Nonfinite ones are decoded as such, and those too small for a scale are kept as errors."""
    for bad in (math.nan, math.inf, -math.inf):
        values = _values(2, 3)
        values[5] = bad
        assert not _code(codec, values)[0][:GROUP].isfinite().all()
    values = torch.full((GROUP,), 1e-320, dtype=torch.float64)
    decoded, errors = _code(codec, values)
    assert decoded.isfinite().all() and torch.equal(errors, values - decoded)


def test_bytes() -> None:
    assert BFloat16Codec().bytes_for(4 * GROUP) == 8 * GROUP
    assert QuantisedCodec(8).bytes_for(4 * GROUP) == 4 * GROUP + 16
    assert QuantisedCodec(8).bytes_for(3 * GROUP) == 3 * GROUP + 16  # a multiple of 8
    assert QuantisedCodec(4).bytes_for(4 * GROUP) == 2 * GROUP + 4 * 16
    assert ExactCodec(torch.float32).bytes_for(3) == 16
    # 41 of each 4096 elements, 2 of 100: values of whole groups, and two bytes for each position.
    assert SparseCodec(QuantisedCodec(8), 0.01).bytes_for(2 * 4096 + 100) == GROUP + 8 + 2 * 84


@given(numel=st.integers(1, 2 * SELECTION_BLOCK + 50), seed=seeds)
def test_a_sparse_codec_sends_the_largest_of_each_block(numel: int, seed: int) -> None:
    values = torch.randn(numel, generator=torch.Generator().manual_seed(seed)).double()
    decoded, _ = _code(SparseCodec(ExactCodec(torch.float64), 0.05), values)
    for block, sent in zip(
        values.split(SELECTION_BLOCK), decoded.split(SELECTION_BLOCK), strict=True
    ):
        largest = block.abs().sort(descending=True).values[: math.ceil(0.05 * len(block))]
        assert torch.equal(sent, torch.where(block.abs() >= largest[-1], block, 0.0))
