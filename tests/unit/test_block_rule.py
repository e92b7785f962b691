"""Block lengths by the quadratic synchronisation rule."""

from __future__ import annotations

import math
from typing import Any

import pytest

import lightning_hier as lh


@pytest.mark.parametrize(
    ("rate", "steps"),
    [
        (0.5, 4),  # (0.3 / 0.5)^2 is below block_size
        (0.15, 4),  # exactly block_size
        (0.1, 9),  # a quotient that float64 rounds down
        (0.09, 11),  # 11.11
        (0.03, 100),
        (0.021, 204),  # 204.08
        (0.02, 225),
        (0.0189736, 250),  # just above the limit
        (1e-3, 250),
        (5e-324, 250),  # the quotient is infinite
        (0.0, 250),
        (0, 250),
    ],
)
def test_blocks_grow_with_the_square_of_the_inverse_rate(rate: float, steps: int) -> None:
    assert lh.QSR(coefficient=0.3, max_block_size=250).block_size(rate, 4) == steps


def test_the_limit_is_at_least_block_size() -> None:
    rule = lh.QSR(coefficient=0.1, max_block_size=8)
    assert rule.block_size(1.0, 8) == 8
    with pytest.raises(ValueError, match=r"at least block_size, got max_block_size=8 and .*=9"):
        rule.block_size(1.0, 9)


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_bad_learning_rate(rate: float) -> None:
    with pytest.raises(ValueError, match=r"learning_rate must be a finite number of at least 0"):
        lh.QSR(coefficient=0.1, max_block_size=8).block_size(rate, 4)


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("coefficient", [0, -0.1, math.nan, math.inf, "big", True, None], "finite number above 0"),
        ("max_block_size", [0, 2.5, "10", True, None], "a whole number of at least 1"),
    ],
)
def test_bad_value_is_refused(name: str, values: list[Any], rule: str) -> None:
    for value in values:
        settings: dict[str, Any] = {"coefficient": 0.1, "max_block_size": 8, name: value}
        with pytest.raises(ValueError, match=f"{name} must .*{rule}, got {value!r}"):
            lh.QSR(**settings)
