"""Tests BMUF-Adam through the Trainer: precisions, skipped steps, and moments with NaN or inf."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.trainer.fitting import (
    BMUF_ADAM,
    HIERARCHICAL,
    Net,
    all_equal,
    errors_on_ranks,
    fit_on_ranks,
    scaled,
    this_rank,
)
from tests.trainer.mistakes import check_errors


class _AdamNet(Net):
    """Notes the moments and the step count of Adam after every step."""

    def __init__(self, optimizer: str = "Adam", **options: Any) -> None:
        super().__init__(lr=0.02, optimizer=optimizer, **{"betas": (0.5, 0.999), **options})

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        (optimizer,) = self.trainer.optimizers
        state = [value for one in optimizer.state.values() for value in one.values()]
        self.notes.append(torch.cat([value.reshape(-1).double() for value in state]))


def _tiers(group_size: int, **settings: Any) -> Any:
    sync = lh.BMUFAdam(**{"block_size": 3, "local_beta1": "keep", **settings})
    return partial(HIERARCHICAL, group_size=group_size, block_sync=sync)


def test_ranks_hold_one_model_and_its_moments() -> None:
    model = partial(_AdamNet, "NAdam")
    ranks = fit_on_ranks(4, _tiers(2), model, 5, precision="bf16-mixed")
    assert all_equal(result.notes[2] for result in ranks)
    assert not all_equal(result.notes[3] for result in ranks)
    assert all_equal(result.weights for result in ranks)
    assert ranks[0].weights.isfinite().all()


class _Overflows(Net):
    """The loss of one rank is beyond half precision in the second step. Notes Adam's step count."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        return loss * 1e38 * 1e38 if this_rank() == 1 and batch_idx == 1 else loss

    def on_train_batch_end(self, *_: Any) -> None:
        (optimizer,) = self.trainer.optimizers
        self.notes.append(float(optimizer.state[next(self.parameters())]["step"]))


def test_step_that_one_rank_skips_counts_for_the_others_alone() -> None:
    """The mean number of steps in the first block is 15/4, and 4 in the second block.

    The filtered number is 3.75 after the first block, and 0.5 * 3.75 + 4 after the second.
    """
    strategy = partial(BMUF_ADAM, block_momentum=0.5)
    model = partial(_Overflows, lr=0.02, optimizer="Adam", betas=(0.5, 0.999))
    ranks = fit_on_ranks(4, strategy, model, 9, **scaled())
    for result in ranks:
        counts = result.notes
        assert counts[3] == pytest.approx(3.75 + 0.5 * 3.75, rel=1e-12)
        assert counts[7] == pytest.approx(counts[3] + 4 + 0.5 * 5.875, rel=1e-12)
    assert [result.notes[2] for result in ranks] == [3.0, 2.0, 3.0, 3.0]
    assert all_equal(result.weights for result in ranks)


class _Poisoned(_AdamNet):
    """One moment of a rank becomes infinite in the last step of a block. Weights are finite."""

    def __init__(self, moment: str, value: float) -> None:
        super().__init__()
        self.moment, self.value = moment, value

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()

        def poison(*_: Any) -> None:
            state = optimizer.state[self.layers[0].weight]
            if this_rank() == 2 and state["step"] == 3.0:
                state[self.moment][0, 0] = self.value

        optimizer.register_step_post_hook(poison)
        return optimizer


def test_moment_that_is_not_finite_is_kept_out_and_its_rank_named() -> None:
    strategy, model = _tiers(2, across="leader"), partial(_Poisoned, "exp_avg_sq", float("inf"))
    errors = errors_on_ranks(4, strategy, model)
    check_errors(
        errors,
        "NaN or inf after 3 steps in state of the local optimizer of rank 2",
        "NonFiniteModelError: ",
    )
