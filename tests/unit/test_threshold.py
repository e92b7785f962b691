"""Threshold compression: what is selected, what stays, and where the threshold goes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier.algorithms.kernels.payload import add_words_, split_words
from lightning_hier.comm.gradients import gtc_tensor as gtc
from tests.signs import select_words, subtract_sent_

finite = st.floats(-8, 8, width=32)
vectors = st.lists(finite, max_size=70).map(lambda values: torch.tensor(values))
thresholds = st.floats(0.0625, 4.0, width=32)


@given(values=vectors, threshold=thresholds)
def test_selection_is_what_exceeds_the_threshold_with_its_sign(
    values: Tensor, threshold: float
) -> None:
    before = values.clone()
    words = select_words(values, threshold)
    index, negative = split_words(words)
    assert torch.equal(values, before)
    assert words.dtype == torch.int32
    assert index.tolist() == [i for i, v in enumerate(values.tolist()) if abs(v) > threshold]
    assert negative.tolist() == [v < 0 for v in values.tolist() if abs(v) > threshold]


def test_selection_crosses_the_chunks_of_a_long_tensor() -> None:
    values = torch.zeros(3 * 65536 + 17)
    hot = [0, 65535, 65536, 131071, 131072, len(values) - 1]
    values[hot] = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    index, negative = split_words(select_words(values, 1.0))
    assert index.tolist() == hot
    assert negative.tolist() == [False, True] * 3


def _sent(words: Tensor, numel: int, threshold: float) -> Tensor:
    signs = torch.zeros(numel, dtype=torch.float64)
    add_words_(signs, words)
    return signs * threshold


quarters = st.integers(-32, 32).map(lambda quarter: quarter / 4)


@given(
    gradients=st.lists(st.lists(quarters, min_size=9, max_size=9), min_size=1, max_size=12),
    threshold=st.sampled_from([0.25, 0.5, 1.0, 2.5, 8.0]),
)
def test_sent_and_residual_add_up_to_the_gradients_exactly(
    gradients: list[list[float]], threshold: float
) -> None:
    """In numbers that float32 holds exactly, so that equality is equality."""
    residual = torch.zeros(9)
    sent = torch.zeros(9, dtype=torch.float64)
    for gradient in gradients:
        residual += torch.tensor(gradient)
        words = select_words(residual, threshold)
        subtract_sent_(residual, words, threshold)
        sent += _sent(words, 9, threshold)
    assert torch.equal(sent + residual, torch.tensor(gradients, dtype=torch.float64).sum(0))


@given(values=vectors, threshold=thresholds)
def test_one_step_takes_one_threshold_from_each_selected_element(
    values: Tensor, threshold: float
) -> None:
    residual = values.double()
    words = select_words(residual, threshold)
    subtract_sent_(residual, words, threshold)
    moved = values.double() - residual
    expected = torch.where(
        values.double().abs() > threshold, values.double().sign() * threshold, 0.0
    )
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-12)
    assert (residual.abs() <= (values.double().abs()).clamp(min=threshold)).all()


@given(lists=st.lists(vectors, min_size=1, max_size=5), threshold=thresholds)
def test_signs_of_several_workers_add_up(lists: list[Tensor], threshold: float) -> None:
    numel = max(len(values) for values in lists)
    padded = [torch.cat([v, torch.zeros(numel - len(v))]) for v in lists]
    signs = torch.zeros(numel)
    for values in padded:
        add_words_(signs, select_words(values, threshold))
    expected = sum(torch.where(v.abs() > threshold, v.sign(), 0.0) for v in padded)
    assert torch.equal(signs, torch.as_tensor(expected))


@pytest.mark.parametrize("density", [0.003, 0.01, 0.1])
@pytest.mark.parametrize("wrong_by", [0.05, 1.0, 30.0])
def test_automatic_threshold_finds_the_density(density: float, wrong_by: float) -> None:
    """From a first gradient that was far too small or too large as well; without swings."""
    generator = torch.Generator().manual_seed(3)
    numel, workers = 5000, 2
    residuals = torch.zeros(workers, numel)
    threshold = gtc.first_threshold(0.2 * wrong_by, density)
    shares = []
    for _ in range(400):
        residuals += 0.2 * torch.randn(workers, numel, generator=generator)
        sent = 0
        for residual in residuals:
            words = select_words(residual, threshold)
            subtract_sent_(residual, words, threshold)
            sent += words.numel()
        shares.append(sent / (workers * numel))
        threshold = gtc.next_threshold(
            threshold, sent=sent, elements=workers * numel, density=density
        )
    settled = shares[-100:]
    assert sum(settled) / len(settled) == pytest.approx(density, rel=0.15)
    assert max(settled) < 2 * density
    assert min(settled) > density / 4


def test_threshold_of_a_silent_tensor_falls_and_comes_back() -> None:
    falling = threshold = 1.0
    for _ in range(60):
        falling = gtc.next_threshold(falling, sent=0, elements=2000, density=0.01)
    assert 0.0 < falling < 1e-3 * threshold
    for _ in range(60):
        falling = gtc.next_threshold(falling, sent=2000, elements=2000, density=0.01)
    assert falling > threshold


def test_threshold_comes_back_after_a_very_long_silence() -> None:
    threshold = 1.0
    for _ in range(20_000):
        threshold = gtc.next_threshold(threshold, sent=0, elements=2000, density=0.01)
    assert threshold > 0.0
    for _ in range(1000):
        threshold = gtc.next_threshold(threshold, sent=2000, elements=2000, density=0.01)
    assert threshold > 1.0
