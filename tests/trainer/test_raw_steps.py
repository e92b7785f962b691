"""Tests the error for steps of an optimizer that bypass the Trainer and are not counted."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.trainer.fitting import Net, all_equal, errors_on_ranks, fit_on_ranks


class _Raw(Net):
    def due(self, batch_idx: int) -> list[Any]:
        return [self.optimizers(use_pl_optimizer=False)]


RAW = partial(_Raw, by_hand=True)


@pytest.mark.parametrize("strategy", ["bmuf", "psp"])
def test_one_clear_error_on_every_rank(strategy: str) -> None:
    for error in errors_on_ranks(2, strategy, RAW):
        assert error.startswith("RuntimeError: SGD.step() was called on the optimizer itself")
        assert "self.optimizers()" in error


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
    ranks = [*fit_on_ranks(2, "bmuf", _Wrapped), *fit_on_ranks(2, "bmuf")]
    assert all_equal(result.weights for result in ranks)


class _StepsInside(_Wrapped):
    """Calls the inner optimizer directly, as in manual optimization with SAM."""

    def due(self, batch_idx: int) -> list[Any]:
        return [optimizer.inner for optimizer in super().due(batch_idx)]


def test_a_step_of_an_optimizer_inside_another_is_an_error() -> None:
    for error in errors_on_ranks(2, "bmuf", partial(_StepsInside, by_hand=True)):
        assert error.startswith("RuntimeError: SGD.step() was called on the optimizer itself")
