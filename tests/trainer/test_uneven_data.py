"""Ranks with different numbers of batches: one error that names ranks and counts."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    BMUF,
    GTC,
    HIERARCHICAL,
    Net,
    Untrained,
    loader,
    make_trainer,
    this_rank,
)
from tests.trainer.mistakes import Mistakes, check_errors, check_mistakes


def _fit(strategy: Any, batches: tuple[int, ...]) -> None:
    """Train with the given number of batches on each rank, which must not start."""
    trainer = make_trainer(strategy(), use_distributed_sampler=False)
    trainer.fit(Untrained(), loader(batches[this_rank()], ranks=1), loader(2, ranks=1))


COUNTS = r"different numbers of training batches: 5 on ranks 0, 2, 3; 3 on rank 1"
MISTAKES: Mistakes = {
    name: (
        partial(_fit, strategy, (5, 3, 5, 5)),
        COUNTS + r"\. Give every rank the same number \(.*limit_train_batches.*repeated",
    )
    for name, strategy in {"groups": BMUF, "one_group": GTC}.items()
}


def test_one_clear_error_on_every_rank_before_training() -> None:
    check_mistakes(__name__)


class _Stream(IterableDataset):
    """Batches without a known number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return (([torch.ones(4), torch.zeros(2)]) for _ in range(self.count))


def _streams(counts: tuple[int, ...], group_size: int, limit_s: float, block_size: int = 4) -> None:
    strategy = HIERARCHICAL(
        group_size=group_size,
        block_sync=lh.BMUF(block_momentum=0.5, block_size=block_size),
        timeout=timedelta(seconds=limit_s),
    )
    data = DataLoader(_Stream(counts[this_rank()]), batch_size=1)
    make_trainer(strategy).fit(Net(), data, loader(1, ranks=1))


@pytest.mark.parametrize("block_size", [4, 50])
def test_error_about_data_of_unknown_length_names_ranks_and_counts(block_size: int) -> None:
    """Rank 1 starts validation after its fifth batch. The others wait at the end of their block."""
    streams = (9, 5, 9), 1, 60.0, block_size
    errors = run_ranks(_streams, 3, *streams, expect_failure=True)
    check_errors(errors, "rank 1 at the evaluation of the global model", kind="OutOfStepError")
    assert "after 5 steps, with no batch left after 5 in this epoch" in errors[0]
    assert "ranks 0, 2 at" in errors[0]
    if block_size == 4:
        assert "ranks 0, 2 at the synchronisation of models at the end of a block" in errors[0]
        assert "end of a block after 8 steps" in errors[0]
    assert "same number of batches" in errors[0] and "limit_train_batches" in errors[0]


@pytest.mark.slow
def test_inside_a_group_the_rank_that_ran_out_is_named_in_limited_time() -> None:
    # On a busy machine, ranks start their first collective seconds apart.
    errors = run_ranks(_streams, 4, (9, 5, 9, 9), 2, 6.0, expect_failure=True)
    # DDP wraps an error in the completion of a bucket.
    assert all("PeerError" in error or "OutOfStepError" in error for error in errors), errors
    assert re.search("rank 1 was last seen at .*with no batch left after 5", errors[0]), errors[0]
