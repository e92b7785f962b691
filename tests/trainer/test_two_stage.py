"""Tests two-stage ASGD through the Trainer, on several ranks and groups."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.trainer.fitting import Net, Watched, fit_on_ranks, loader

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


def test_validation_sees_one_model_on_all_ranks() -> None:
    settings = {"group_size": 2, "hierarchical_lr": False, "push_period": 1, "refresh_period": 2}
    trainer = {"validate": 2, "max_epochs": 3, "val_check_interval": 4, "num_sanity_val_steps": 0}
    # Without hierarchical_lr, late gradients of both groups add up, and a larger rate diverges.
    model = partial(Watched, lr=0.01)
    ranks = fit_on_ranks(4, partial(TWO_STAGE, **settings), model, 12, **trainer)
    first = ranks[0]
    assert len(first.notes) == 9
    for other in ranks:
        assert all(map(torch.equal, first.notes, other.notes))
        assert other.weights.isfinite().all()
        assert torch.equal(other.weights, first.weights)
    assert torch.equal(first.notes[-1][: len(first.weights)], first.weights.double())
    assert not torch.equal(first.notes[0], first.notes[-1])
