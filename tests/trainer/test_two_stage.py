"""Tests two-stage ASGD through the Trainer, on several ranks and groups, with ranks that die."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import RankOutcome, rank_outcomes
from tests.trainer.breaking import Disturbed
from tests.trainer.fitting import Net, Watched, fit_on_ranks, fitted, loader

TWO_STAGE = partial(lh.TwoStageASGDStrategy, timeout=timedelta(seconds=30))


def _double() -> Net:
    return Net().double()


@pytest.mark.parametrize(
    ("ranks", "settings", "tolerance"),
    [
        (1, {"push_period": 1, "double_buffering": False}, 1e-12),
        (4, {"group_size": 2, "warmup_steps": 1000}, 1e-10),
    ],
    ids=["one rank that pushes every gradient", "warm-up"],
)
def test_settings_that_equal_synchronous_sgd(
    ranks: int, settings: dict[str, Any], tolerance: float
) -> None:
    common = {"max_epochs": 2, "data": loader(6, ranks=ranks, dtype=torch.float64)}
    two_stage = fit_on_ranks(ranks, partial(TWO_STAGE, **settings), _double, **common)
    for result, plain in zip(two_stage, fit_on_ranks(ranks, "ddp", _double, **common), strict=True):
        torch.testing.assert_close(result.weights, plain.weights, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "settings",
    [
        {"group_size": 2},
        pytest.param({"group_size": "world"}, marks=pytest.mark.slow),
        pytest.param({"group_size": 1, "order_locking": False}, marks=pytest.mark.slow),
        pytest.param(
            {"group_size": 2, "double_buffering": False, "push_period": 3}, marks=pytest.mark.slow
        ),
        {"group_size": 2, "hierarchical_lr": False, "push_period": 1, "refresh_period": 2},
    ],
)
def test_validation_sees_one_model_on_all_ranks(settings: dict[str, Any]) -> None:
    trainer = {"validate": 2, "max_epochs": 3, "val_check_interval": 4, "num_sanity_val_steps": 0}
    ranks = fit_on_ranks(4, partial(TWO_STAGE, **settings), Watched, 12, **trainer)
    first = ranks[0]
    assert len(first.notes) == 9
    for other in ranks:
        assert all(map(torch.equal, first.notes, other.notes))
        assert other.weights.isfinite().all()
        assert torch.equal(other.weights, first.weights)
    assert torch.equal(first.notes[-1][: len(first.weights)], first.weights.double())
    assert not torch.equal(first.notes[0], first.notes[-1])


def _disturbed(disturbances: dict[tuple[int, int], str], **settings: Any) -> list[RankOutcome]:
    strategy = partial(TWO_STAGE, group_size=2, push_period=3, **settings)
    model = partial(Disturbed, disturbances, step_s=0.02)
    return rank_outcomes(fitted, 4, strategy, model, 12, max_epochs=2)


def _ended_alike(outcomes: list[RankOutcome]) -> None:
    for outcome in outcomes:
        assert outcome.error is None, outcome.traceback
        assert torch.equal(outcome.result.weights, outcomes[0].result.weights)
    assert outcomes[0].result.weights.isfinite().all()


def test_rank_that_sleeps_comes_back() -> None:
    """Each rank sleeps once, at another step."""
    _ended_alike(_disturbed({(rank, 5 * rank): "sleeps" for rank in range(4)}))


@pytest.mark.parametrize(
    ("rank", "double_buffering"),
    [(1, True), (3, True), pytest.param(1, False, marks=pytest.mark.slow), (3, False)],
)
def test_group_goes_on_without_a_rank(rank: int, double_buffering: bool) -> None:
    outcomes = _disturbed({(rank, 5): "dies"}, double_buffering=double_buffering)
    assert outcomes.pop(rank).died
    _ended_alike(outcomes)


@pytest.mark.parametrize("order_locking", [True, False])
def test_groups_go_on_without_another_groups_first_rank(order_locking: bool) -> None:
    outcomes = _disturbed({(2, 5): "dies"}, order_locking=order_locking)
    assert outcomes[2].died
    assert outcomes[3].error is not None and outcomes[3].error.startswith("PeerError: rank 2 of")
    assert "its group can't continue" in outcomes[3].error
    _ended_alike(outcomes[:2])


def test_no_rank_continues_without_the_master() -> None:
    master, *others = _disturbed({(0, 5): "dies"})
    assert master.died
    for outcome in others:
        assert outcome.error is not None and outcome.error.startswith("PeerError: rank 0")
        assert "master" in outcome.error
