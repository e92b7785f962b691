"""Groups whose models are averaged, and the state that an excluded group forgets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hier.comm.blocks.health import (
    HealthReport,
    ModelHealth,
    Nonfinite,
    NonFiniteModelError,
    SyncPoint,
    decide_participation,
    exclusion_warning,
    require_finite,
)
from lightning_hier.comm.blocks.local_state import forget_state_
from lightning_hier.comm.tiers import RankLayout

GOOD = Nonfinite.NOTHING


def _reports(*found: Nonfinite) -> list[HealthReport]:
    return [
        HealthReport(
            SyncPoint.BLOCK, 0, 12, math.nan if flags else float(rank + 1), 0, int(flags), -1
        )
        for rank, flags in enumerate(found)
    ]


def test_a_group_is_left_out_as_a_whole() -> None:
    reports = _reports(GOOD, GOOD, GOOD, Nonfinite.BUFFERS, GOOD, GOOD)
    layout = RankLayout((2, 3))
    for rank in range(6):
        participation = decide_participation(reports, layout, rank, "exclude")
        assert (participation.healthy, participation.excluded) == (2, (1,))
        assert participation.takes_part == (rank not in (2, 3))
        assert participation.first == 0
        assert participation.squares == 1 + 2 + 5 + 6
    said = exclusion_warning(reports, layout, participation)
    assert "group 1 (ranks 2, 3) was excluded" in said
    assert "model of rank 3 holds NaN or inf after 12 steps (averaged buffers)" in said


def test_the_first_healthy_group_is_not_always_the_first() -> None:
    reports = _reports(GOOD, Nonfinite.BUFFERS, GOOD, GOOD)
    assert decide_participation(reports, RankLayout((2, 2)), 0, "exclude").first == 1


@pytest.mark.parametrize("choice", ["error", "exclude"])
def test_all_healthy(choice: Any) -> None:
    participation = decide_participation(_reports(GOOD, GOOD), RankLayout((1, 2)), 1, choice)
    assert (participation.squares, participation.healthy, participation.excluded) == (3, 2, ())
    assert participation.takes_part
    require_finite(_reports(GOOD, GOOD))


def test_everything_that_was_found_is_named() -> None:
    reports = _reports(Nonfinite.PARAMETERS, Nonfinite.OPTIMIZER | Nonfinite.BUFFERS)
    said = r"ranks 0, 1 .*\(parameters, averaged buffers, state of the local optimizer\)"
    for choice in ("error", "exclude"):
        with pytest.raises(NonFiniteModelError, match=said):
            decide_participation(reports, RankLayout((1, 2)), 0, choice)
    with pytest.raises(NonFiniteModelError, match=said):
        require_finite(reports)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(3))
def test_readings_of_tensors_and_of_squares_find_the_same(bad: float, place: int) -> None:
    tensors = [[torch.ones(2), torch.zeros(0)], [], [torch.ones(3, dtype=torch.float64)]]
    assert ModelHealth.of_tensors(*tensors) == ModelHealth()
    tensors[place] = [torch.ones(2), torch.tensor([1.0, bad])]
    flag = list(Nonfinite.__members__.values())[place + 1]
    assert ModelHealth.of_tensors(*tensors).nonfinite == flag
    squares = [2.0, 0.0, 3.0]
    squares[place] = math.nan if math.isnan(bad) else math.inf
    assert ModelHealth.of_squares(*squares).nonfinite == flag
    assert (ModelHealth(1.0) + ModelHealth(2.0, flag)) == ModelHealth(3.0, flag)


def _trained(kind: str, **options: Any) -> tuple[torch.optim.Optimizer, nn.Parameter]:
    weight = nn.Parameter(torch.ones(3))
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
    for _ in range(3):
        weight.grad = torch.full((3,), torch.nan)
        optimizer.step()
    with torch.no_grad():
        weight.fill_(1.0)
    return optimizer, weight


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"amsgrad": True}),
        ("NAdam", {}),
        ("Rprop", {}),
        ("Adagrad", {"initial_accumulator_value": 0.5}),
        ("ASGD", {}),
        ("RMSprop", {"centered": True, "momentum": 0.9}),
    ],
)
def test_optimizer_that_forgets_goes_on_like_a_new_one(kind: str, options: dict[str, Any]) -> None:
    old, weight = _trained(kind, **options)
    forget_state_(old, [weight], [])
    fresh = nn.Parameter(torch.ones(3))
    new = getattr(torch.optim, kind)([fresh], lr=0.1, **options)
    for step in range(1, 4):
        for optimizer, parameter in ((old, weight), (new, fresh)):
            parameter.grad = torch.full((3,), float(step))
            optimizer.step()
    assert torch.equal(weight, fresh)
    assert weight.isfinite().all()


def test_what_travels_with_the_model_stays_and_what_lies_beside_it_begins_anew() -> None:
    """RMSprop makes all of its state or nothing, so its other tensors must stay there."""
    optimizer, weight = _trained("RMSprop", momentum=0.9)
    momentum = optimizer.state[weight]["momentum_buffer"].fill_(2.0)
    forget_state_(optimizer, [weight], [momentum])
    state = optimizer.state[weight]
    assert state["momentum_buffer"] is momentum and momentum.eq(2.0).all()
    assert state["square_avg"].eq(0.0).all() and state["step"] == 0.0
    weight.grad = torch.ones(3)
    optimizer.step()
    assert weight.isfinite().all()


def test_state_of_parameters_outside_the_block_stays() -> None:
    inside, outside = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([inside, outside])
    for parameter in (inside, outside):
        parameter.grad = torch.ones(1)
    optimizer.step()
    forget_state_(optimizer, [inside], [])
    assert inside not in optimizer.state
    assert optimizer.state[outside]["step"] == 1.0
