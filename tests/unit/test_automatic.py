"""Values of settings that are "auto", and the description of settings that ranks compare."""

from __future__ import annotations

import math
from typing import Any

import pytest

import lightning_hier as lh
from lightning_hier.algorithms.automatic import (
    auto_block_size,
    auto_density,
    auto_warmup_steps,
)
from lightning_hier.loop.settings import Synchronisation, described


@pytest.mark.parametrize(
    ("steps", "block_size", "warmup_steps", "density"),
    [
        (1, 1, 0, 0.1),
        (20, 1, 2, 0.1),
        (300, 15, 30, 0.1),
        (1000, 50, 100, 0.03),
        (3000, 50, 300, 0.01),
        (10**6, 50, 500, 0.01),
        (math.inf, 50, 50, 0.01),
    ],
)
def test_rules(steps: float, block_size: int, warmup_steps: int, density: float) -> None:
    assert auto_block_size(steps) == block_size
    assert auto_warmup_steps(steps) == warmup_steps
    assert auto_density(steps) == pytest.approx(density)


@pytest.mark.parametrize(
    ("steps", "models", "block_size"),
    [(60, 2, 3), (300, 2, 7), (300, 4, 4), (1000, 4, 12), (3000, 8, 18), (10**6, 64, 50)],
)
def test_bmuf_adam_has_twenty_blocks_for_each_model(
    steps: int, models: int, block_size: int
) -> None:
    assert lh.BMUFAdam().resolved(steps, models).steps == block_size
    assert lh.BMUFAdam(block_size=7).resolved(steps, models).steps == 7
    assert lh.BMUF().resolved(steps, models).steps == min(50, steps // 20)


def test_automatic_warm_up_is_zero_where_it_is_not_possible() -> None:
    asked = Synchronisation("auto", lh.AllReduce(), lh.BMUFAdam())
    assert asked.resolved(600, num_models=2, warms_up=False).warmup_steps == 0
    assert asked.resolved(600, num_models=2, warms_up=True).warmup_steps == 60


def test_automatic_setting_has_no_value_before_a_run() -> None:
    with pytest.raises(RuntimeError, match="block_size='auto' has no number"):
        _ = lh.ModelAveraging().steps
    with pytest.raises(RuntimeError, match="density='auto' has no number"):
        _ = lh.GTC().share


class State:
    """A class without ``__repr__``."""


def hook(state: Any, bucket: Any) -> None:
    """A hook."""


def test_descriptions_contain_no_addresses() -> None:
    """Addresses differ between processes."""
    settings = {"gradient_sync": lh.CommHook(hook, State()), "of": hook, "held": State()}
    assert described(settings) == {
        "gradient_sync": "CommHook",
        "hook": "hook",
        "state": "State",
        "bytes_per_element": None,
        "of": "hook",
        "held": "State",
    }
