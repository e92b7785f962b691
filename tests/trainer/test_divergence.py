"""Errors about NaN and inf in models, and evaluation of such models."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

import lightning_hier as lh
from tests.trainer.breaking import INF, Breaks
from tests.trainer.fitting import (
    AVERAGING,
    BMUF,
    GTC,
    HIERARCHICAL,
    Net,
    errors_on_ranks,
    fit,
    fit_on_ranks,
    fits_on_ranks,
    fitted,
)
from tests.trainer.mistakes import Mistakes, check_errors, check_mistakes

NO_SANITY_CHECK = {"num_sanity_val_steps": 0}


def _tiers(group_size: int, where: str) -> None:
    """Batch 5 is the last of the second block."""
    sync = lh.BMUF(block_momentum=0.5, block_size=3, across="leader")
    fit(HIERARCHICAL(group_size=group_size, block_sync=sync), 6, Breaks(5, (2,), where))


def _one_model(strategy: Any, *ranks: int) -> None:
    fit(strategy(), 6, Breaks(1, ranks, "loss"))


_LATE = "NaN or inf after 6 steps in "
_EARLY = "NaN or inf after {} steps in parameters.* of ranks "
_NOT_SENT = r".*no model was sent\. Lower"
_WARM = partial(BMUF, block_size=3, warmup_steps=2)
# Ranks that train one model are all named.
MISTAKES: Mistakes = {
    "parameters": (
        partial(_tiers, 1, "layers.2.weight"),
        _LATE + r"parameters.* of rank 2 \(group 2\)" + _NOT_SENT,
    ),
    "loss of a group": (
        partial(_tiers, 2, "loss"),
        _LATE + r"parameters of ranks 2, 3 \(group 1\)" + _NOT_SENT,
    ),
    "buffers": (
        partial(_tiers, 1, "layers.1.running_var"),
        _LATE + r"averaged buffers of rank 2 \(group 2\)" + _NOT_SENT,
    ),
    "all groups": (
        partial(_one_model, partial(BMUF, block_size=3), *range(4)),
        _EARLY.format(3) + r"0, 1, 2, 3 \(groups 0, 1, 2, 3\)",
    ),
    "in the warm-up": (partial(_one_model, _WARM, 1), _EARLY.format(2) + "0, 1, 2, 3"),
    "a single group": (partial(_one_model, GTC, 1), _EARLY.format(6) + "0, 1, 2, 3:"),
}


def test_one_error_names_ranks_groups_and_tensors_before_a_model_is_sent() -> None:
    check_mistakes(__name__, kind="NonFiniteModelError")


def test_only_buffers_that_remain_after_the_warm_up_must_be_finite() -> None:
    """In the warm-up, DDP overwrites the statistics of all ranks with those of rank 0."""
    strategy = partial(BMUF, block_size=2, warmup_steps=2)
    infinite = [partial(Breaks, 1, (rank,), "layers.1.running_var", INF) for rank in (0, 1)]
    first, other = fit_on_ranks(2, strategy, infinite[1], 5)
    assert torch.equal(first.weights, other.weights) and first.weights.isfinite().all()
    for error in errors_on_ranks(2, strategy, infinite[0], 5):
        assert "NaN or inf after 2 steps in averaged buffers of rank 0" in error


def test_nonfinite_model_of_the_warm_up_is_not_evaluated() -> None:
    strategy = partial(lh.BMUFStrategy, warmup_steps=50, block_size=50)
    settings = {"validate": 1, "val_check_interval": 2, **NO_SANITY_CHECK}
    for error in errors_on_ranks(2, strategy, partial(Breaks, 1, (0,), "loss"), **settings):
        assert "NaN or inf after 2 steps in parameters" in error


def test_buffer_is_not_averaged_by_parameter_servers_either() -> None:
    model = partial(Breaks, 1, (1,), "layers.1.running_var")
    errors = errors_on_ranks(2, lh.PSPStrategy, model, 5)
    found = "NaN or inf in averaged buffers: layers.1.running_var of rank 1. Lower"
    check_errors(errors, found, kind="NonFiniteModelError")


class _Masked(Net):
    """Has a mask of minus infinity, as attention uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((4,), -INF))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch) + self.get_buffer("mask").exp().sum()


def test_buffer_that_is_infinite_from_the_start_is_no_error() -> None:
    strategies = partial(BMUF, block_size=2, warmup_steps=2), lh.PSPStrategy
    fits = [partial(fitted, strategy, _Masked, 5) for strategy in strategies]
    for result in chain(*fits_on_ranks(2, *fits)):
        assert result.state["mask"].isneginf().all()
        assert result.weights.isfinite().all()


class _Far(Net):
    """Has weights at both ends of the range. Models are finite, but their differences are not."""

    def __init__(self) -> None:
        super().__init__()
        self.far = torch.nn.Parameter(torch.zeros(2))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            self.far.fill_(3e38 * (-1) ** (batch_idx // 2))


def test_update_beyond_the_range_is_an_error_too() -> None:
    strategy = partial(AVERAGING, block_size=2, find_unused_parameters=True)
    errors = errors_on_ranks(2, strategy, _Far, 8)
    check_errors(errors, "the global update exceeds the range", kind="NonFiniteModelError: the")
