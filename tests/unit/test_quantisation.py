"""Quantisation: decoded values and errors add up to the encoded values; how errors are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
    Int4Codec,
    Int8Codec,
)
from lightning_hier.algorithms.quantisation import QUANTISATION_GROUP as GROUP
from lightning_hier.algorithms.sparse_codec import SELECTION_BLOCK, SparseCodec
from lightning_hier.comm.blocks.error_feedback import ErrorFeedback

CODECS = pytest.mark.parametrize(
    "codec",
    [
        BFloat16Codec(),
        Int8Codec(),
        Int4Codec(),
        ExactCodec(torch.float64),
        SparseCodec(Int4Codec(), 0.3),
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
    [(Int8Codec(), GROUP, 127, 1e-4), (Int4Codec(), INT4_GROUP, 7, 1e-6)],
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
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_are_decoded_as_nonfinite(codec: Codec, bad: float) -> None:
    values = _values(2, 3)
    values[5] = bad
    assert not _code(codec, values)[0][:GROUP].isfinite().all()


@CODECS
def test_values_too_small_for_a_scale_are_kept_as_errors(codec: Codec) -> None:
    values = torch.full((GROUP,), 1e-320, dtype=torch.float64)
    decoded, errors = _code(codec, values)
    assert decoded.isfinite().all() and torch.equal(errors, values - decoded)


def test_bytes() -> None:
    assert BFloat16Codec().bytes_for(4 * GROUP) == 8 * GROUP
    assert Int8Codec().bytes_for(4 * GROUP) == 4 * GROUP + 16
    assert Int8Codec().bytes_for(3 * GROUP) == 3 * GROUP + 16  # a multiple of 8
    assert Int4Codec().bytes_for(4 * GROUP) == 2 * GROUP + 4 * 16
    assert ExactCodec(torch.float32).bytes_for(3) == 16
    # 41 of each 4096 elements, 2 of 100: values of whole groups, and two bytes for each position.
    assert SparseCodec(Int8Codec(), 0.01).bytes_for(2 * 4096 + 100) == GROUP + 8 + 2 * 84


@given(numel=st.integers(1, 2 * SELECTION_BLOCK + 50), seed=seeds)
def test_a_sparse_codec_sends_the_largest_of_each_block(numel: int, seed: int) -> None:
    values = torch.randn(numel, generator=torch.Generator().manual_seed(seed)).double()
    decoded, _ = _code(SparseCodec(ExactCodec(torch.float64), 0.05), values)
    for block, sent in zip(
        values.split(SELECTION_BLOCK), decoded.split(SELECTION_BLOCK), strict=True
    ):
        largest = block.abs().sort(descending=True).values[: math.ceil(0.05 * len(block))]
        assert torch.equal(sent, torch.where(block.abs() >= largest[-1], block, 0.0))


_NUMEL = 700


def _places(chunk: int) -> Iterator[slice]:
    for start in range(0, _NUMEL, chunk):
        yield slice(start, min(start + chunk, _NUMEL))


def _with_errors(chunk: int, expected: Tensor) -> ErrorFeedback:
    feedback = ErrorFeedback(_NUMEL, chunk=chunk, inter_host_ranks=3, like=torch.empty(0))
    for place in _places(chunk):
        errors = feedback.of(place, keep=True)
        errors.own[: place.stop - place.start] = expected[place]
        errors.sums.fill_(1.0)
    return feedback


def _errors(feedback: ErrorFeedback, chunk: int) -> Tensor:
    pieces = (feedback.of(p, keep=False).own[: p.stop - p.start] for p in _places(chunk))
    return torch.cat([*pieces])


def test_errors_are_kept_if_the_number_of_groups_changes() -> None:
    expected = torch.randn(_NUMEL)
    feedback = _with_errors(256, expected)
    for ranks in (2, 5, 1, 3):
        feedback.fit(ranks)
        assert torch.equal(_errors(feedback, 256), expected)


def test_errors_are_kept_on_another_kind_of_device_with_longer_chunks() -> None:
    expected = torch.randn(_NUMEL)
    saved = _with_errors(256, expected).state()
    longer = ErrorFeedback(_NUMEL, chunk=512, inter_host_ranks=3, like=torch.empty(0))
    longer.load(saved)
    assert torch.equal(_errors(longer, 512), expected)
    assert not longer.state()["sums"].any()
