"""Tests warnings and errors about NaN and inf in models, and evaluation of such models.

``tests/equivalence/test_divergence.py`` compares the resulting models with twins.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from lightning_hier.comm.blocks.health import NonFiniteModelError
from tests.ranks import run_ranks
from tests.trainer.breaking import INF, Breaks
from tests.trainer.fitting import (
    AVERAGING,
    BMUF,
    GTC,
    HIERARCHICAL,
    Net,
    errors_on_ranks,
    fit_on_ranks,
    loader,
    make_trainer,
    weights,
)
from tests.trainer.mistakes import check_errors

EXCLUDE = partial(BMUF, on_nonfinite="exclude")
NO_SANITY_CHECK = {"num_sanity_val_steps": 0}


def _about_nan(warned: list[str]) -> list[str]:
    return [text for text in warned if "NaN" in text]


@pytest.mark.parametrize(
    ("group_size", "where", "group", "ranks", "kind"),
    [
        (1, "loss", "group 2 (rank 2)", "rank 2", "parameters"),
        (2, "loss", "group 1 (ranks 2, 3)", "ranks 2, 3", "parameters"),
        (1, "layers.1.running_var", "group 2 (rank 2)", "rank 2", "averaged buffers"),
        (1, "layers.2.weight", "group 2 (rank 2)", "rank 2", "parameters"),
    ],
)
def test_one_warning_names_ranks_step_and_kind_of_tensors(
    group_size: int, where: str, group: str, ranks: str, kind: str
) -> None:
    """Batch 5 is the last of the second block and of training."""
    sync = lh.BMUF(block_size=3)
    strategy = partial(HIERARCHICAL, group_size=group_size, block_sync=sync, on_nonfinite="exclude")
    results = fit_on_ranks(4, strategy, partial(Breaks, 5, (2,), where))
    assert all(result.weights.isfinite().all() for result in results)
    (warning,), *others = (_about_nan(result.warned) for result in results)
    assert others == [[], [], []]  # only rank 0 warns
    assert warning.startswith(
        "At the synchronisation of models at the end of a block, after 6 steps,"
    )
    left_out = f"{group} was excluded from the mean of the models: the local model of {ranks} holds"
    assert left_out in warning
    assert f"({kind}" in warning
    assert "Such a group starts the next block from the global model" in warning


@pytest.mark.parametrize(("group_size", "named"), [(1, "rank 2"), (2, "rank")])
def test_model_that_is_not_finite_is_kept_out_and_named(group_size: int, named: str) -> None:
    sync = lh.BMUF(block_size=3, across="leader")
    strategy = partial(HIERARCHICAL, group_size=group_size, block_sync=sync)
    check_errors(
        errors_on_ranks(4, strategy, partial(Breaks, 2, (2,), "layers.2.weight")),
        rf"local model of {named}.*holds NaN or inf after 3 steps.*kept out of the global model",
        kind="NonFiniteModelError",
    )


def test_several_groups_are_named_in_one_warning() -> None:
    strategy = partial(EXCLUDE, block_size=3)
    first = fit_on_ranks(4, strategy, partial(Breaks, 4, (0, 3), "loss"))[0]
    (warning,) = _about_nan(first.warned)
    assert "group 0 (rank 0) and group 3 (rank 3) were excluded" in warning
    assert "the local model of ranks 0, 3 holds NaN" in warning


@pytest.mark.parametrize(
    ("strategy", "ranks", "message"),
    [
        (
            partial(EXCLUDE, block_size=3),
            (0, 1),
            r"3 steps \(parameters.*no group has a finite model",
        ),
        (
            partial(EXCLUDE, block_size=3, warmup_steps=2),
            (1,),
            r"2 steps \(parameters.*all ranks train it",
        ),
        (partial(GTC, on_nonfinite="exclude"), (1,), r"6 steps \(parameters.*all ranks train it"),
    ],
    ids=["all groups", "in the warm-up", "a single group"],
)
def test_one_error_where_no_finite_model_is_left(
    strategy: Any, ranks: tuple[int, ...], message: str
) -> None:
    errors = errors_on_ranks(2, strategy, partial(Breaks, 1, ranks, "loss"))
    error = rf"NonFiniteModelError: the local model of ranks 0, 1 holds NaN or inf after {message}"
    check_errors(errors, error, kind="NonFiniteModelError")


def test_only_buffers_that_remain_after_the_warm_up_must_be_finite() -> None:
    """In the warm-up, DDP overwrites the statistics of all ranks with those of rank 0."""
    strategy = partial(BMUF, block_size=2, warmup_steps=2)
    infinite = [partial(Breaks, 1, (rank,), "layers.1.running_var", INF) for rank in (0, 1)]
    first, other = fit_on_ranks(2, strategy, infinite[1], 5)
    assert torch.equal(first.weights, other.weights) and first.weights.isfinite().all()
    for error in errors_on_ranks(2, strategy, infinite[0], 5):
        assert "rank 0 holds NaN or inf after 2 steps (averaged buffers)" in error


def test_nonfinite_model_of_the_warm_up_is_not_evaluated() -> None:
    strategy = partial(lh.BMUFStrategy, warmup_steps=50, block_size=50)
    settings = {"validate": 1, "val_check_interval": 2, **NO_SANITY_CHECK}
    for error in errors_on_ranks(2, strategy, partial(Breaks, 1, (0,), "loss"), **settings):
        assert "NaN or inf after 2 steps (parameters)" in error


def _failing_evaluation() -> tuple[bool, bool]:
    """Whether evaluation is still active after its failure, and whether the weights are finite."""
    model, strategy = Breaks(1, (1,), "layers.2.weight"), BMUF(block_size=50)
    with pytest.raises(NonFiniteModelError):
        make_trainer(strategy, val_check_interval=3, **NO_SANITY_CHECK).fit(
            model, loader(6), loader(1)
        )
    assert strategy._ended is not None
    active = strategy._ended.synchroniser.evaluation.active
    return active, bool(weights(model).isfinite().all())


def test_failed_evaluation_leaves_the_local_model() -> None:
    assert run_ranks(_failing_evaluation, 2) == [(False, True), (False, False)]


class _Masked(Net):
    """Has a mask of minus infinity, as attention uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((4,), -INF))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch) + self.get_buffer("mask").exp().sum()


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_buffer_that_is_infinite_from_the_start_is_no_error(warmup_steps: int) -> None:
    strategy = partial(BMUF, block_size=2, warmup_steps=warmup_steps)
    for result in fit_on_ranks(2, strategy, _Masked, 5):
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
