"""Weights of groups by the samples of their blocks."""

from __future__ import annotations

import math

import pytest

from lightning_hier.algorithms.block_momentum import auto_block_momentum
from lightning_hier.algorithms.weighting import (
    group_weights,
    sample_weights,
    weighted_block_momentum,
)


@pytest.mark.parametrize("number", [1, 2, 7, 64])
@pytest.mark.parametrize("samples", [1, 3, 1e-300, 1e300])
def test_equal_samples_give_equal_weights(number: int, samples: float) -> None:
    weights, effective = sample_weights([samples] * number)
    assert weights == [1 / number] * number
    assert effective == number
    if number > 1:
        momentum = weighted_block_momentum(effective, block_lr=0.5, c=1.1)
        assert momentum == auto_block_momentum(number, block_lr=0.5, c=1.1)


def test_unequal_samples() -> None:
    weights, effective = sample_weights([30, 10, 0])
    assert weights == [0.75, 0.25, 0.0]
    assert effective == pytest.approx(1600 / 1000, rel=1e-15)
    assert effective == pytest.approx(1 / sum(own * own for own in weights), rel=1e-15)
    assert sample_weights([5, 0, 0]) == ([1.0, 0.0, 0.0], 1.0)
    assert weighted_block_momentum(1.0) == 0.0


def test_groups_without_samples_count_equally() -> None:
    without = group_weights([0, 0, 0])
    assert [own.weight for own in without] == [1 / 3, 1 / 3, 1 / 3]
    assert without[0].effective == 3.0


def test_block_momentum_gives_the_mean_sample_its_weight() -> None:
    """A fraction p_k of the samples has the weight p_k zeta / (1 - eta), whose mean is C."""
    weights, effective = sample_weights([7, 2, 4])
    eta = weighted_block_momentum(effective, block_lr=0.8, c=1.2)
    assert sum(own * own for own in weights) * 0.8 / (1 - eta) == pytest.approx(1.2, rel=1e-15)


@pytest.mark.parametrize("samples", [[], [0, 0], [1, -1], [math.nan, 1], [1, math.inf]])
def test_bad_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples must be finite numbers of at least 0"):
        sample_weights(samples)
