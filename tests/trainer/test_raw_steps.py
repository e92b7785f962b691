"""Tests the error for steps of an optimizer that bypass the Trainer and are not counted."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.trainer.fitting import BMUF_ADAM, Net, all_equal, errors_on_ranks, fit_on_ranks


class _Raw(Net):
    def due(self, batch_idx: int) -> list[Any]:
        return [self.optimizers(use_pl_optimizer=False)]


RAW = partial(_Raw, by_hand=True)


@pytest.mark.parametrize("strategy", ["bmuf", "psp"])
def test_one_clear_error_on_every_rank(strategy: str) -> None:
    for error in errors_on_ranks(2, strategy, RAW):
        assert error.startswith("RuntimeError: SGD.step() was called on the optimizer itself")
        assert "self.optimizers()" in error


class _Replacing(Net):
    """Creates its optimizer anew in the second epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.trainer.strategy.setup_optimizers(self.trainer)


@pytest.mark.parametrize("strategy", ["bmuf", "psp"])
def test_an_optimizer_that_has_replaced_another_is_an_error(strategy: str) -> None:
    for error in errors_on_ranks(2, strategy, _Replacing, max_epochs=2):
        assert error.startswith("RuntimeError: SGD is not the optimizer 0 with which training")


class _Resetting(Net):
    """Discards the state of its optimizer in the second epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.trainer.optimizers[0].state.clear()


def test_a_state_of_adam_that_has_replaced_another_is_an_error() -> None:
    net = partial(_Resetting, optimizer="Adam")
    for error in errors_on_ranks(2, BMUF_ADAM, net, max_epochs=2):
        assert error.startswith("RuntimeError: the state of Adam was replaced during training")


class _WrapsLater(Net):
    """A callback may wrap optimizers at the start of training."""

    def on_fit_start(self) -> None:
        self.trainer.optimizers = [_Wrapping(own) for own in self.trainer.optimizers]


class _Wrapping(torch.optim.Optimizer):
    """Wraps an optimizer, as many versions of Lookahead do, without a call of the base class.

    It only has the attributes that Lightning uses.
    """

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


def test_wrapper_without_initialisation_of_the_base_class_trains() -> None:
    ranks = [each for net in (_Wrapped, _WrapsLater, Net) for each in fit_on_ranks(2, "bmuf", net)]
    assert all_equal(result.weights for result in ranks)


class _StepsInside(_Wrapped):
    """Calls the inner optimizer directly, as in manual optimization with SAM."""

    def due(self, batch_idx: int) -> list[Any]:
        return [optimizer.inner for optimizer in super().due(batch_idx)]


def test_a_step_of_an_optimizer_inside_another_is_an_error() -> None:
    for error in errors_on_ranks(2, "bmuf", partial(_StepsInside, by_hand=True)):
        assert error.startswith("RuntimeError: SGD.step() was called on the optimizer itself")
