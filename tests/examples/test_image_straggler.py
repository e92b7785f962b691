"""Tests of callbacks that make a rank late (`Straggler`) and that lengthen steps (`Pace`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from examples.image import step_pause
from examples.image.data_module import Images
from examples.image.model import ResNetClassifier
from examples.image.step_pause import Pace, StepPause
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


def test_the_fraction_of_late_batches_is_kept() -> None:
    """The tolerance is six standard deviations of a binomial share of 4000."""
    for fraction in (0.0016, 0.25):
        share = sum(late(0, fraction, 4000)) / 4000
        assert abs(share - fraction) <= 6 * (fraction * (1 - fraction) / 4000) ** 0.5
    assert not any(late(0, 0.0, 500)) and all(late(0, 1.0, 500))
    assert late(1, 0.5, 100) == late(1, 0.5, 100) != late(2, 0.5, 100)


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


def started(pause: StepPause, rank: int = 0) -> pl.LightningModule:
    """A module whose forward pass pauses, at batch 5 of epoch 7."""
    trainer: Any = SimpleNamespace(current_epoch=7, global_rank=rank, world_size=2)
    module = ResNetClassifier(num_classes=10, image_channels=1, channels=(2,))
    pause.setup(trainer, module, "fit")
    pause.on_train_start(trainer, module)
    pause.on_train_batch_start(trainer, module, None, 5)
    return module


def test_a_pause_comes_once_in_a_batch_and_not_in_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(step_pause.time, "sleep", sleeps.append)
    pause, images = Straggler(rank=0, seconds=5.0), torch.zeros(2, 1, 8, 8)
    module = started(pause)
    module(images)
    module(images)
    assert sleeps == [5.0]
    trainer: Any = SimpleNamespace(current_epoch=7)
    pause.on_train_batch_start(trainer, module, None, 6)
    pause.on_train_batch_end(trainer, module, None, None, 6)
    module(images)
    assert sleeps == [5.0]
    pause.on_train_batch_start(trainer, module, None, 7)
    pause.on_train_end(trainer, module)
    module(images)
    assert (sleeps, pause.slept_s, pause.late_batches) == ([5.0], 5.0, [(7, 5)])


def test_pace_sleeps_for_the_rest_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(step_pause.time, "sleep", sleeps.append)
    for begun, ended, expected in ((10.0, 10.25, [0.75]), (10.0, 11.5, [])):
        sleeps.clear()
        clock = iter([begun, ended])
        monkeypatch.setattr(step_pause.time, "monotonic", lambda clock=clock: next(clock))
        started(Pace(1.0))(torch.zeros(2, 1, 8, 8))
        assert sleeps == expected


def test_a_late_rank_that_does_not_exist_is_refused() -> None:
    trainer: Any = SimpleNamespace(world_size=4)
    with pytest.raises(ValueError, match="smaller than the number of ranks, 4, got 4"):
        Straggler(rank=4, seconds=1.0).setup(trainer, pl.LightningModule(), "fit")
