"""Steps that nobody counts: taken on the optimizer itself, past the Trainer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hier.strategies.misuse import RawSteps
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights


class _Raw(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


def _train(strategy: str) -> int:
    model = _Raw()
    fit(strategy, 6, model)
    return len(model.seen)


@pytest.mark.parametrize("strategy", ["bmuf", "psp", "two_stage_asgd"])
def test_one_clear_error_on_every_rank(strategy: str) -> None:
    for error in run_ranks(_train, 2, strategy, expect_failure=True):
        assert error.startswith("RuntimeError: SGD.step() was called on the optimizer itself")
        assert "self.optimizers()" in error


def test_servers_count_the_steps_of_one_rank_too() -> None:
    """A run that goes on from its checkpoint on more ranks leaves out what it has of a warm-up."""
    [error] = run_ranks(_train, 1, "psp", expect_failure=True)
    assert "This step would not be counted" in error


def test_one_rank_has_nothing_to_synchronise() -> None:
    assert run_ranks(_train, 1, "bmuf") == [6]


class _Wrapping(torch.optim.Optimizer):
    """As many a Lookahead: has what Lightning asks of an optimizer, but is never initialised."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups, self.state = inner.param_groups, inner.state
        self.defaults = inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


class _Wrapped(Net):
    def configure_optimizers(self) -> Any:
        return _Wrapping(super().configure_optimizers())


def _train_wrapped() -> tuple[Tensor, Tensor]:
    models = _Wrapped(), Net()
    for model in models:
        fit("bmuf", 6, model)
    return weights(models[0]), weights(models[1])


def test_an_optimizer_that_merely_looks_like_one_trains() -> None:
    results = run_ranks(_train_wrapped, 2)
    for wrapped, plain in results:
        assert torch.equal(wrapped, plain) and torch.equal(wrapped, results[0][0])


class _StepsInside(_Wrapped, _Raw):
    """As a SAM whose two steps are taken by hand."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.inner.step()


def _train_inside() -> None:
    fit("bmuf", 6, _StepsInside())


def test_a_step_of_an_optimizer_inside_another_is_an_error() -> None:
    for error in run_ranks(_train_inside, 2, expect_failure=True):
        assert error.startswith("RuntimeError: SGD.step() was called on the optimizer itself")


def test_steps_of_other_models_and_after_training_pass() -> None:
    own, other = Net(), Net()
    first, second = own.configure_optimizers(), other.configure_optimizers()
    raw_steps = RawSteps(lambda: set(own.parameters()), lambda: False)
    try:
        second.step()
        with raw_steps.counted():
            first.step()
        with pytest.raises(RuntimeError, match="on the optimizer itself"):
            first.step()
    finally:
        raw_steps.remove()
    first.step()
