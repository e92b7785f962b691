"""Tests of a callback that makes a rank late (`Straggler`)."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from examples.image.data_module import Images
from examples.image.model import ResNetClassifier
from examples.image.step_pause import Pace
from examples.image.straggler import Straggler
from examples.quiet import quiet_trainer
from lightning_hier import HierarchicalStrategy, PSPStrategy
from tests.ranks import run_ranks

SECONDS = 0.02


def tiny_trainer(strategy: Any, callbacks: list[pl.Callback]) -> pl.Trainer:
    limits = {"max_epochs": 2, "limit_train_batches": 10, "limit_val_batches": 0}
    return quiet_trainer(strategy, devices=2, callbacks=callbacks, **limits)


def fit_on_this_rank() -> tuple[list[tuple[int, int]], float]:
    """Late batches and seconds slept."""
    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    late = Straggler(rank=1, seconds=SECONDS)
    trainer = tiny_trainer(HierarchicalStrategy(group_size="world", warmup_steps=0), [late])
    trainer.fit(ResNetClassifier(channels=(2,)), Images(batch_images=4))
    return late.late_batches, late.slept_s


def test_one_rank_sleeps_at_every_batch() -> None:
    on_time, (batches, slept) = run_ranks(fit_on_this_rank, 2)
    assert on_time == ([], 0.0)
    assert batches == [(epoch, batch) for epoch in range(2) for batch in range(10)]
    assert slept == pytest.approx(20 * SECONDS)


def late(seed: int, fraction: float, count: int) -> list[bool]:
    drawing = Straggler(rank=0, seconds=0.0, fraction=fraction, seed=seed)
    return [drawing.is_late(7, batch) for batch in range(count)]


def fit_by_halves(seconds: float) -> tuple[list[tuple[int, int]], float]:
    """Late batches and seconds slept with PSP, where one of two gradients is enough."""
    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    late = Straggler(rank=1, seconds=seconds)
    trainer = tiny_trainer(PSPStrategy(min_pushes=1), [late, Pace(0.02)])
    trainer.fit(ResNetClassifier(channels=(2,)), Images(batch_images=4))
    return late.late_batches, late.slept_s


def test_a_batch_that_psp_leaves_out_costs_nothing() -> None:
    _, (batches, slept) = run_ranks(fit_by_halves, 2, 0.2)
    assert 0 < len(batches) < 20
    assert slept == pytest.approx(0.2 * len(batches))
