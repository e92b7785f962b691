"""Tests two-stage ASGD through the Trainer, on several ranks and groups."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import torch

import lightning_hier as lh
from tests.trainer.fitting import Net, Watched, fit_on_ranks, fits_on_ranks, fitted, loader

TWO_STAGE = partial(lh.TwoStageASGDStrategy, timeout=timedelta(seconds=30))


def _double() -> Net:
    return Net().double()


def test_warm_up_equals_synchronous_sgd() -> None:
    data = loader(6, ranks=4, dtype=torch.float64)
    warm = partial(TWO_STAGE, group_size=2, warmup_steps=1000)
    two_stage, plain = fits_on_ranks(
        4, *(partial(fitted, strategy, _double, data=data) for strategy in (warm, "ddp"))
    )
    for result, by_ddp in zip(two_stage, plain, strict=True):
        torch.testing.assert_close(result.weights, by_ddp.weights, rtol=0, atol=1e-10)


def test_validation_sees_one_model_on_all_ranks() -> None:
    settings = {"group_size": 2, "hierarchical_lr": False, "push_period": 1, "refresh_period": 2}
    trainer = {"validate": 2, "max_epochs": 2, "val_check_interval": 4, "num_sanity_val_steps": 0}
    # Without hierarchical_lr, late gradients of both groups add up, and a larger rate diverges.
    model = partial(Watched, lr=0.01)
    ranks = fit_on_ranks(4, partial(TWO_STAGE, **settings), model, 12, **trainer)
    first = ranks[0]
    assert len(first.notes) == 6
    for other in ranks:
        assert all(map(torch.equal, first.notes, other.notes))
        assert other.weights.isfinite().all()
        assert torch.equal(other.weights, first.weights)
    assert torch.equal(first.notes[-1][: len(first.weights)], first.weights.double())
    assert not torch.equal(first.notes[0], first.notes[-1])
