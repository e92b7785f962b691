"""Tests PSP-SGD through the Trainer with ranks that die, raise or hang at a given step."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import lightning_hier as lh
from tests.ranks import RankOutcome, rank_outcomes
from tests.trainer.breaking import Disturbed, fitted_and_marked
from tests.trainer.fitting import Fitted, fitted, this_rank
from tests.waiting import leave_mark, wait_for_marks

RANKS = 4
BATCHES = 12


def _fit(
    disturbances: dict[tuple[int, int], str],
    callbacks: Sequence[pl.Callback] = (),
    **settings: Any,
) -> Fitted:
    strategy = partial(lh.PSPStrategy, **{"timeout": timedelta(seconds=30), **settings})
    model = partial(Disturbed, disturbances, step_s=0.05)
    validation = {"validate": 2, "num_sanity_val_steps": 0}
    return fitted(strategy, model, BATCHES, max_epochs=2, callbacks=[*callbacks], **validation)


def _outcomes(disturbances: dict[tuple[int, int], str], **settings: Any) -> list[RankOutcome]:
    return rank_outcomes(_fit, RANKS, disturbances, **settings)


def _ended_alike(outcomes: list[RankOutcome], dead: set[int]) -> None:
    living = [outcome for outcome in outcomes if outcome.rank not in dead]
    for outcome in living:
        assert outcome.error is None, f"rank {outcome.rank}: {outcome.traceback}"
        result, first = outcome.result, living[0].result
        assert result.steps == 2 * BATCHES
        assert result.weights.isfinite().all()
        assert torch.equal(result.weights, first.weights)
        assert result.logged == first.logged


_FIRST_AND_LAST = [(0, 0), (3, BATCHES - 1)]
_PLACES = [(rank, step) for rank in (0, 1, 3) for step in (0, 5, BATCHES - 1)]


@pytest.mark.parametrize(
    ("rank", "step"),
    [
        pytest.param(*place, marks=[] if place in _FIRST_AND_LAST else pytest.mark.slow)
        for place in _PLACES
    ],
)
def test_rank_that_is_killed_is_done_without(rank: int, step: int) -> None:
    """The next rank serves its shard."""
    outcomes = _outcomes({(rank, step): "dies"}, min_pushes=2)
    _ended_alike(outcomes, {rank})
    serving = [
        outcome.rank for outcome in outcomes if outcome.result and _takeovers(outcome.result)
    ]
    assert serving == [(rank + 1) % RANKS]


def _takeovers(result: Fitted) -> float:
    return result.metrics["hier/psp/takeovers"]


def test_rank_that_takes_over_may_raise() -> None:
    outcomes = _outcomes({(1, 3): "dies", (2, 14): "raises"}, min_pushes=2)
    assert outcomes[2].error == "ValueError: this rank's own mistake"
    _ended_alike(outcomes, {1, 2})


def test_rank_that_sleeps_comes_back() -> None:
    _ended_alike(_outcomes({(3, 4): "sleeps"}, min_pushes=3, min_pulled=0.75), set())


class _WaitsForFailures(pl.Callback):
    """Keeps a failed rank until these ranks have failed, so that they do not lose it too."""

    def __init__(self, folder: Path, ranks: set[int]) -> None:
        self.folder, self.ranks = folder, ranks

    def on_exception(self, *_: Any) -> None:
        leave_mark(self.folder, str(this_rank()))
        wait_for_marks(self.folder, *map(str, self.ranks))


def _fit_with_one_loss(folder: Path) -> Fitted:
    return _fit(
        {(1, 4): "dies"}, callbacks=[_WaitsForFailures(folder, {0, 2, 3})], min_pushes="all"
    )


def test_too_few_ranks_are_one_clear_error_everywhere(tmp_path: Path) -> None:
    outcomes = rank_outcomes(_fit_with_one_loss, RANKS, tmp_path)
    for outcome in outcomes[:1] + outcomes[2:]:
        assert outcome.error is not None and outcome.error.startswith("QuorumError: ")
        assert "rank 1" in outcome.error
        assert "min_pushes='all' needs 4 of 4 workers, and 3 are left" in outcome.error
        assert "set min_pushes to the number of workers that must be left" in outcome.error


def test_end_after_the_loss_of_a_host_warns_of_the_wait_of_torchrun() -> None:
    _, survivor = rank_outcomes(_fit, 2, {(0, 3): "dies"}, min_pushes=1, ranks_per_node=1)
    assert survivor.error is None, survivor.traceback
    assert any("rank 0 is lost" in text for text in survivor.result.warned)
    [warning] = [text for text in survivor.result.warned if "torchrun" in text]
    assert "waits 300 s for its agents on the hosts that were lost" in warning
    assert "SIGKILL" in warning


def _die_together(folder: Path) -> None:
    tempfile.tempdir = str(folder)
    _fit({(rank, 3): "dies" for rank in range(2)}, min_pushes=1)


def test_nothing_stays_in_the_temporary_folder_when_all_ranks_are_killed(tmp_path: Path) -> None:
    outcomes = rank_outcomes(_die_together, 2, tmp_path)
    assert [outcome.exit_code for outcome in outcomes] == [-signal.SIGKILL] * 2
    assert not list(tmp_path.iterdir())


def test_late_rank_that_is_needed_is_named_at_the_limit(tmp_path: Path) -> None:
    # On a busy machine, ranks start their first collective seconds apart.
    strategy = partial(lh.PSPStrategy, timeout=timedelta(seconds=5))
    model = partial(Disturbed, {(2, 3): "hangs"}, tmp_path, step_s=0.05)
    for outcome in rank_outcomes(fitted_and_marked, 3, tmp_path, strategy, model, BATCHES)[:2]:
        assert outcome.error is not None and outcome.error.startswith("PeerError")
        assert "rank 2" in outcome.error
