"""Steps that nobody counts: taken on the optimizer itself, past the Trainer."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit


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
    assert "nobody would count this step" in error


def test_one_rank_has_nothing_to_synchronise() -> None:
    assert run_ranks(_train, 1, "bmuf") == [6]
