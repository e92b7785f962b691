"""NaN and inf as a user meets them: who is named, what is warned of, what goes on.

What the models become is compared with twins in ``tests/equivalence/test_divergence.py``.
"""

from __future__ import annotations

import csv
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

import lightning_hier as lh
from lightning_hier.comm.blocks.health import NonFiniteModelError
from tests.ranks import run_ranks
from tests.trainer.breaking import INF, Breaks, Make, caught_in
from tests.trainer.fitting import Net, fit, loader, make_trainer, weights


def _rank() -> int:
    return int(os.environ["RANK"])


def _warned(group_size: int, *broken: Any) -> tuple[list[str], bool]:
    """Also whether the model is finite after all."""
    sync = lh.BMUF(block_size=3)
    make = partial(
        lh.HierarchicalStrategy,
        group_size=group_size,
        block_sync=sync,
        on_nonfinite="exclude",
        warmup_steps=0,
    )
    said, model = caught_in(make, *broken)
    return said, bool(weights(model).isfinite().all())


@pytest.mark.parametrize(
    ("group_size", "where", "group", "ranks", "found"),
    [
        (1, "loss", "group 2 (rank 2)", "rank 2", "parameters"),
        (2, "loss", "group 1 (ranks 2, 3)", "ranks 2, 3", "parameters"),
        (1, "layers.1.running_var", "group 2 (rank 2)", "rank 2", "averaged buffers"),
        (1, "layers.2.weight", "group 2 (rank 2)", "rank 2", "parameters"),
    ],
)
def test_one_warning_names_ranks_step_and_what_was_not_finite(
    group_size: int, where: str, group: str, ranks: str, found: str
) -> None:
    """Batch 5 is the last of the second block; training ends with it."""
    results = run_ranks(_warned, 4, group_size, 5, (2,), where)
    assert all(finite for _, finite in results)
    (said,), *others = (said for said, _ in results)
    assert others == [[], [], []]  # rank 0 alone warns
    assert said.startswith("At the synchronisation of models at the end of a block, after 6 steps,")
    assert (
        f"{group} was left out of the mean of the models: the local model of {ranks} holds" in said
    )
    assert f"({found}" in said
    assert "Such a group starts the next block from the global model" in said


def test_several_groups_are_named_in_one_warning() -> None:
    (said,) = run_ranks(_warned, 4, 1, 4, (0, 3), "loss")[0][0]
    assert "group 0 (rank 0) and group 3 (rank 3) were left out" in said
    assert "the local model of ranks 0, 3 holds NaN" in said


ONE_MODEL: dict[str, tuple[Make, str]] = {
    "all groups": (
        partial(lh.BMUFStrategy, block_size=3, on_nonfinite="exclude", warmup_steps=0),
        r"model of ranks 0, 1 holds NaN or inf after 3 steps \(parameters.*no group is healthy",
    ),
    "in the warm-up": (
        partial(lh.BMUFStrategy, block_size=3, warmup_steps=2, on_nonfinite="exclude"),
        r"model of ranks 0, 1 holds NaN or inf after 2 steps \(parameters.*all ranks train it",
    ),
    "a single group": (
        partial(lh.GTCStrategy, on_nonfinite="exclude", warmup_steps=0, density=0.01),
        r"model of ranks 0, 1 holds NaN or inf after 6 steps \(parameters.*all ranks train it",
    ),
}


def _one_model(name: str) -> None:
    ranks = (0, 1) if name == "all groups" else (1,)
    fit(ONE_MODEL[name][0](), 6, Breaks(1, ranks, "loss"))


@pytest.mark.parametrize("name", ONE_MODEL)
def test_where_no_healthy_model_is_left_one_error_is_raised(name: str) -> None:
    errors = run_ranks(_one_model, 2, name, expect_failure=True)
    for error in errors:
        assert error.startswith("NonFiniteModelError: the local model of ranks 0, 1")
        assert re.search(ONE_MODEL[name][1], error), error
    assert len(set(errors)) == 1


def _buffer_of_the_warm_up(rank: int) -> Tensor:
    """DDP forms the statistics of rank 0 in the warm-up; those of others are overwritten."""
    model = Breaks(1, (rank,), "layers.1.running_var", INF)
    fit(lh.BMUFStrategy(block_size=2, warmup_steps=2), 5, model)
    return weights(model)


def test_of_the_warm_up_s_buffers_those_that_last_must_be_finite() -> None:
    healthy, other = run_ranks(_buffer_of_the_warm_up, 2, 1)
    assert torch.equal(healthy, other) and healthy.isfinite().all()
    for error in run_ranks(_buffer_of_the_warm_up, 2, 0, expect_failure=True):
        assert "rank 0 holds NaN or inf after 2 steps (averaged buffers)" in error


def _look_in_the_warm_up() -> None:
    trainer = make_trainer(
        lh.BMUFStrategy(warmup_steps=50, block_size=50),
        val_check_interval=2,
        num_sanity_val_steps=0,
    )
    trainer.fit(Breaks(1, (0,), "loss"), loader(6), loader(1))


def test_model_of_the_warm_up_that_is_not_finite_is_not_shown() -> None:
    for error in run_ranks(_look_in_the_warm_up, 2, expect_failure=True):
        assert "NaN or inf after 2 steps (parameters)" in error


def _failing_look() -> tuple[bool, bool]:
    """Whether the global model is said to be shown after a look that failed, and NaN is back."""
    model = Breaks(1, (1,), "layers.2.weight")
    strategy = lh.BMUFStrategy(block_size=50, warmup_steps=0)
    trainer = make_trainer(strategy, val_check_interval=3, num_sanity_val_steps=0)
    with pytest.raises(NonFiniteModelError):
        trainer.fit(model, loader(6), loader(1))
    assert strategy._ended is not None
    return strategy._ended.training.synchroniser.evaluation.active, bool(
        weights(model).isfinite().all()
    )


def test_look_that_fails_leaves_the_local_model() -> None:
    assert run_ranks(_failing_look, 2) == [(False, True), (False, False)]


class _Masked(Net):
    """With a mask of minus infinity, as attention has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((4,), -INF))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) + self.get_buffer("mask").exp().sum()


def _masked(warmup_steps: int) -> tuple[Tensor, Tensor]:
    model = _Masked()
    fit(lh.BMUFStrategy(block_size=2, warmup_steps=warmup_steps), 5, model)
    return model.get_buffer("mask"), weights(model)


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_buffer_that_is_infinite_from_the_start_makes_no_model_sick(warmup_steps: int) -> None:
    for mask, final in run_ranks(_masked, 2, warmup_steps):
        assert mask.isneginf().all()
        assert final.isfinite().all()


class _Far(Net):
    """A weight at either end of the range: every model is finite, their differences are not."""

    def __init__(self) -> None:
        super().__init__()
        self.far = torch.nn.Parameter(torch.zeros(2))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            self.far.fill_(3e38 * (-1) ** (batch_idx // 2))


def _beyond_the_range() -> None:
    strategy = lh.ModelAveragingStrategy(block_size=2, find_unused_parameters=True, warmup_steps=0)
    fit(strategy, 8, _Far())


def test_update_beyond_the_range_is_an_error_too() -> None:
    errors = run_ranks(_beyond_the_range, 2, expect_failure=True)
    for error in errors:
        assert error.startswith("NonFiniteModelError: the global update is beyond the range")
    assert len(set(errors)) == 1


def _logged() -> None:
    logger = CSVLogger(os.environ["FOLDER"], name="run", version=0)
    make = partial(lh.BMUFStrategy, block_size=2, on_nonfinite="exclude", warmup_steps=0)
    caught_in(make, 2, (0, 1), "loss", batches=8, logger=logger, log_every_n_steps=2)


def test_exclusions_are_counted_in_the_log(tmp_path: Path) -> None:
    """Both of the first two groups of three, in the second block."""
    run_ranks(_logged, 3, env={"FOLDER": str(tmp_path)})
    with (tmp_path / "run" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("hier/block/blocks")]
    counts = [(float(row["hier/block/blocks"]), float(row["hier/block/excluded"])) for row in rows]
    assert counts[0] == (1, 0)
    assert counts[-1] == (4, 2)


PRESETS = [
    lh.GTCStrategy,
    lh.ModelAveragingStrategy,
    lh.BMUFStrategy,
    lh.BMUFAdamStrategy,
    lh.BMUFGTCStrategy,
    lh.HierarchicalStrategy,
]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_synchronous_strategy_takes_the_choice(preset: Any) -> None:
    assert preset().on_nonfinite == "error"
    assert preset(on_nonfinite="exclude").on_nonfinite == "exclude"
    with pytest.raises(
        ValueError, match="on_nonfinite must be one of 'error', 'exclude', got 'skip'"
    ):
        preset(on_nonfinite="skip")


def _choices_differ() -> None:
    fit(
        lh.BMUFStrategy(
            on_nonfinite="exclude" if _rank() else "error", warmup_steps=0, block_size=50
        )
    )


def test_choice_must_be_the_same_on_all_ranks() -> None:
    for error in run_ranks(_choices_differ, 2, expect_failure=True):
        assert 'on_nonfinite: "error" on rank 0; "exclude" on rank 1' in error
