"""Values of settings that are "auto", and the description of settings that ranks compare."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

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
        (60, 3, 6, 0.1),
        (300, 4, 30, 0.1),
        (1000, 8, 100, 0.03),
        (3000, 24, 300, 0.01),
        (10**6, 50, 500, 0.01),
        (math.inf, 50, 50, 0.01),
    ],
)
def test_rules(steps: float, block_size: int, warmup_steps: int, density: float) -> None:
    assert auto_block_size(steps, 125) == block_size
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
    assert lh.DiLoCo(block_size="auto").resolved(steps, models).steps == block_size


def test_moments_travel_less_often_only_with_automatic_blocks() -> None:
    assert lh.BMUFAdam().resolved(300, 4).moments_every == 4
    assert lh.BMUFAdam(moments_every=1).resolved(300, 4).moments_every == 1
    assert lh.BMUFAdam(block_size=7).moments_every == 1
    asked = Synchronisation(0, lh.AllReduce(), lh.BMUFAdam())
    # A run that was saved before there was an automatic number goes on with every block.
    for saved, every in (({"moments_every": 4}, 4), ({}, 1)):
        resumed = asked.with_values({"block_size": 7, **saved})
        assert resumed.block_sync == lh.BMUFAdam(block_size=7, moments_every=every)


@pytest.mark.parametrize(
    ("steps", "bmuf", "bmuf_adam", "diloco"),
    [
        (300, 0.0, 1 - 20 / 75, 1 - 20 / 75),
        (1000, 0.0, 0.75, 1 - 20 * 12 / 1000),
        (10_000, 0.0, 0.75, 1 - 0.7 / 4),
        (100_000, 0.5, 0.75, 1 - 0.7 / 4),
        (math.inf, 0.75, 0.75, 1 - 0.7 / 4),
    ],
)
def test_momentum_has_blocks_to_build_up(
    steps: float, bmuf: float, bmuf_adam: float, diloco: float
) -> None:
    asked = lh.DiLoCo(block_size="auto", outer_momentum="auto")
    assert lh.BMUF().resolved(steps, 4).block_momentum == pytest.approx(bmuf)
    assert lh.BMUFAdam().resolved(steps, 4).block_momentum == pytest.approx(bmuf_adam)
    assert asked.resolved(steps, 4).outer_momentum == pytest.approx(diloco)
    # With another number of models for each mean, it follows that number.
    assert asked.resolved(steps, 4, varies=True).outer_momentum == "auto"
    # A short run has as much as lets the update of a block count once.
    assert asked.resolved(20, 4).outer_momentum == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("sync", "factor"),
    [
        (lh.BMUF(block_momentum=0.75), 0.25),
        (lh.BMUF(block_momentum=0.5, block_lr=2.0), 0.25),
        (lh.BMUF(block_momentum=0.5, update_from="start"), 0.5 / 1.5),
        (lh.BMUF(block_momentum=0.5, update_from="start", nesterov=False), 0.5),
        (lh.BMUF(block_momentum=0.75, local_lr="keep"), 1.0),
        (lh.BMUF(block_momentum=0.75, local_lr=0.4), 0.4),
        (lh.ModelAveraging(), 1.0),
    ],
)
def test_local_learning_rate_makes_up_for_block_momentum(sync: Any, factor: float) -> None:
    """A mini-batch counts zeta / (1 - eta) times in the global model, and (1 + eta) times that.

    The latter where the update is added to the look-ahead.
    """
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD(parameters, lr=0.2)
    with sync.stepping(optimizer, 4)():
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * factor)
    assert optimizer.param_groups[0]["lr"] == 0.2
    with sync.stepping(optimizer, 1)():  # one model has no block momentum
        assert optimizer.param_groups[0]["lr"] == 0.2
    line = sync.chosen(optimizer, 4)
    assert (line is not None) == (factor not in (0.4, 1.0)) and "local_lr" in (line or "local_lr")


def test_steps_that_are_normalised_keep_their_learning_rate() -> None:
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    with lh.BMUF(block_momentum=0.75).stepping(adam, 4)():
        assert adam.param_groups[0]["lr"] == 0.2


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
