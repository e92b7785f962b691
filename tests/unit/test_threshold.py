"""Threshold compression: the automatic threshold, and the indices of words."""

from __future__ import annotations

import pytest
import torch

from lightning_hier import GTC
from lightning_hier.algorithms.kernels import payload
from lightning_hier.comm.gradients import gtc_tensor as gtc
from tests.signs import select_words, subtract_sent_


@pytest.mark.parametrize(("density", "wrong_by"), [(0.003, 30.0), (0.1, 0.05)])
def test_automatic_threshold_reaches_the_density(density: float, wrong_by: float) -> None:
    """The first gradient may be far too small or too large. The density does not oscillate."""
    generator = torch.Generator().manual_seed(3)
    numel, workers = 5000, 2
    residuals = torch.zeros(workers, numel)
    threshold = gtc.first_threshold(0.2 * wrong_by, density)
    densities = []
    for _ in range(300):
        residuals += 0.2 * torch.randn(workers, numel, generator=generator)
        sent = 0
        for residual in residuals:
            words = select_words(residual, threshold)
            subtract_sent_(residual, words, threshold)
            sent += words.numel()
        densities.append(sent / (workers * numel))
        threshold = gtc.next_threshold(
            threshold, sent=sent, elements=workers * numel, density=density
        )
    last = densities[-100:]
    assert sum(last) / len(last) == pytest.approx(density, rel=0.15)
    assert max(last) < 2 * density
    assert min(last) > density / 4


def test_threshold_recovers_after_many_steps_without_words() -> None:
    threshold = 1.0
    for _ in range(20_000):
        threshold = gtc.next_threshold(threshold, sent=0, elements=2000, density=0.01)
    assert threshold > 0.0
    for _ in range(1000):
        threshold = gtc.next_threshold(threshold, sent=2000, elements=2000, density=0.01)
    assert threshold > 1.0


def test_highest_index_of_a_segment_survives_both_signs() -> None:
    last = 2**31 - 1
    words = torch.tensor([last, last - 2**31], dtype=torch.int64).int()
    index, negative = payload.split_words(words)
    assert index.tolist() == [last, last]
    assert negative.tolist() == [False, True]


def test_only_tensors_that_31_bits_can_index_are_compressed() -> None:
    config = GTC(dense_below=0)
    assert [config.compresses(n) for n in (0, 1, 2**31, 2**31 + 1)] == [False, True, True, False]
    assert not GTC(dense_below=8).compresses(7)
