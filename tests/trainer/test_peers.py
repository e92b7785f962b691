"""A dead, failing or late rank becomes an error that names it on the others, in limited time."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import lightning_hier as lh
from tests.ranks import RankOutcome, rank_outcomes, run_ranks
from tests.trainer.fitting import Net, fit, make_trainer
from tests.waiting import leave_mark, wait_for_marks

# Ranks of a busy machine come to their first meeting seconds apart.
LIMIT = timedelta(seconds=6)


def _rank() -> int:
    return int(os.environ["RANK"])


class _Disturbed(Net):
    """At one batch, one rank does something else, or sleeps until the others have failed."""

    def __init__(self, rank: int, batch: int, disturbance: str, marks: Path) -> None:
        super().__init__()
        self.where = rank, batch
        self.disturbance = disturbance
        self.marks = marks

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.where == (_rank(), batch_idx):
            if self.disturbance == "raises":
                raise ValueError("this rank's own mistake")
            if self.disturbance == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            others = {*range(self.trainer.world_size)} - {_rank()}
            wait_for_marks(self.marks, *map(str, others))
        return super().training_step(batch, batch_idx)


def _run(marks: Path, disturbance: str, group_size: int, rank: int, batch: int) -> None:
    strategy = lh.BMUFGTCStrategy(
        group_size=group_size,
        block_size=4,
        dense_below=0,
        timeout=LIMIT,
        warmup_steps=0,
        density=0.01,
    )
    try:
        fit(strategy, 12, _Disturbed(rank, batch, disturbance, marks))
    finally:
        leave_mark(marks, str(_rank()))


def _errors(outcomes: list[RankOutcome], without: int) -> dict[int, str]:
    errors = {}
    for outcome in outcomes:
        if outcome.rank != without:
            assert outcome.error is not None, f"rank {outcome.rank} went on"
            assert outcome.error.startswith("PeerError"), outcome.error
            errors[outcome.rank] = outcome.error
    return errors


@pytest.mark.parametrize("disturbance", ["raises", "dies", "sleeps"])
def test_peer_missing_from_a_block_synchronisation_is_named(
    disturbance: str, tmp_path: Path
) -> None:
    outcomes = rank_outcomes(_run, 3, tmp_path, disturbance, 1, 1, 6)
    for error in _errors(outcomes, without=1).values():
        assert "end of a block failed because rank 1 did not take part" in error
        assert "rank 1 was last seen at the synchronisation of models" in error
    if disturbance == "raises":
        assert outcomes[1].error == "ValueError: this rank's own mistake"


@pytest.mark.parametrize("disturbance", ["raises", "sleeps"])
def test_peer_missing_from_a_step_of_its_group_is_named(disturbance: str, tmp_path: Path) -> None:
    """The rank beside it says so; the other group meets the silence at its block's end."""
    outcomes = rank_outcomes(_run, 4, tmp_path, disturbance, 2, 3, 5)
    errors = _errors(outcomes, without=3)
    assert (
        "a step after the synchronisation of models at the end of a block failed because rank 3 "
        "did not take part"
    ) in errors[2]
    for rank in (0, 1):
        assert "end of a block failed" in errors[rank]
        assert "3 did not take part" in errors[rank]


class _Stream(IterableDataset):
    """Batches without a known number; one rank has fewer."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        for _ in range(self.batches):
            yield torch.ones(4), torch.zeros(2)


def _uneven(block_size: int, group_size: int, limit_s: float) -> None:
    strategy = lh.BMUFGTCStrategy(
        group_size=group_size,
        block_size=block_size,
        timeout=timedelta(seconds=limit_s),
        warmup_steps=0,
        density=0.01,
    )
    trainer = make_trainer(strategy)
    trainer.fit(Net(), DataLoader(_Stream(5 if _rank() == 1 else 9), batch_size=1))


@pytest.mark.parametrize("block_size", [3, 4, 50])
def test_rank_that_ran_out_of_data_is_named(block_size: int) -> None:
    errors = run_ranks(_uneven, 3, block_size, 1, 60.0, expect_failure=True)
    for error in errors:
        assert error.startswith("OutOfStepError"), error
        assert "rank 1 at the evaluation of the global model" in error
        assert "end of an epoch) after 5 steps" in error
        assert "ranks 0, 2 at" in error
        assert "same number of batches" in error


@pytest.mark.slow
def test_rank_that_ran_out_inside_a_group_is_named_in_limited_time() -> None:
    """Its neighbour waits for it in a step, and the others for both."""
    errors = run_ranks(_uneven, 4, 3, 2, LIMIT.total_seconds(), expect_failure=True)
    assert all(error.startswith(("PeerError", "OutOfStepError")) for error in errors)
    assert "rank 1 was last seen at the evaluation of the global model" in errors[0]


def _second_fit_with_a_late_rank(marks: Path) -> None:
    """The first fit's notes must not hide who is missing in the second."""
    fit(lh.BMUFStrategy(block_size=2, timeout=LIMIT, warmup_steps=0), 12)
    _run(marks, "raises", 1, 1, 2)


def test_missing_peer_is_named_in_a_second_fit_too(tmp_path: Path) -> None:
    outcomes = rank_outcomes(_second_fit_with_a_late_rank, 2, tmp_path)
    (error,) = _errors(outcomes, without=1).values()
    assert "rank 1 did not take part" in error
