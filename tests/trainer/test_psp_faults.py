"""PSP-SGD with ranks that die or fall silent, at an exact (rank, step), through the Trainer."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import RankOutcome, rank_outcomes
from tests.trainer.fitting import Net, fit, loader, make_trainer, weights
from tests.waiting import leave_mark, wait_for_marks

RANKS = 4
BATCHES = 12
LIMIT = timedelta(seconds=30)


def _rank() -> int:
    return int(os.environ["RANK"])


class _Disturbed(Net):
    """At given (rank, batch) places a rank dies, stands still or raises.

    One that hangs goes on when the others have ended, as they mark in the folder.
    """

    def __init__(
        self, disturbances: dict[tuple[int, int], str], folder: Path | None = None
    ) -> None:
        super().__init__(batchnorm=True)
        self.disturbances, self.folder = disturbances, folder

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        disturbance = self.disturbances.get((_rank(), self.global_step))
        if disturbance == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if disturbance == "raises":
            raise ValueError("this rank's own mistake")
        if disturbance == "sleeps":
            time.sleep(1.5)
        if disturbance == "hangs" and self.folder is not None:
            others = {*range(self.trainer.world_size)} - {_rank()}
            wait_for_marks(self.folder, *map(str, others))
        # Else the live ranks would have finished before they notice.
        time.sleep(0.05)
        return super().training_step(batch, batch_idx)


def _run(disturbances: dict[tuple[int, int], str], settings: dict[str, Any]) -> Any:
    strategy = lh.PSPStrategy(**{"timeout": LIMIT, **settings})
    model = _Disturbed(disturbances)
    trainer = make_trainer(strategy, max_epochs=2, num_sanity_val_steps=0)
    trainer.fit(model, loader(BATCHES), loader(2))
    loss = float(trainer.callback_metrics["val_loss"])
    return weights(model), trainer.global_step, loss


def _ended_alike(outcomes: list[RankOutcome], dead: set[int]) -> None:
    living = [outcome for outcome in outcomes if outcome.rank not in dead]
    for outcome in living:
        assert outcome.error is None, f"rank {outcome.rank}: {outcome.traceback}"
        model, steps, loss = outcome.result
        assert steps == 2 * BATCHES
        assert torch.isfinite(model).all()
        assert torch.equal(model, living[0].result[0])
        assert loss == living[0].result[2]


@pytest.mark.parametrize(
    ("rank", "step"),
    [
        *[(0, 0), (3, BATCHES - 1)],
        *[
            pytest.param(rank, step, marks=pytest.mark.slow)
            for rank, step in [
                (0, 5),
                (0, BATCHES - 1),
                (1, 0),
                (1, 5),
                (1, BATCHES - 1),
                (3, 0),
                (3, 5),
            ]
        ],
    ],
)
def test_rank_that_is_killed_is_done_without(rank: int, step: int) -> None:
    where = {(rank, step): "dies"}
    outcomes = rank_outcomes(_run, RANKS, where, {"min_pushes": 2})
    _ended_alike(outcomes, {rank})


@pytest.mark.slow
def test_rank_that_takes_over_may_die_too() -> None:
    where = {(1, 3): "dies", (2, 14): "dies"}
    outcomes = rank_outcomes(_run, RANKS, where, {"min_pushes": 2})
    _ended_alike(outcomes, {1, 2})


def test_rank_that_raises_is_done_without() -> None:
    outcomes = rank_outcomes(_run, RANKS, {(2, 4): "raises"}, {"min_pushes": 3})
    assert outcomes[2].error == "ValueError: this rank's own mistake"
    _ended_alike(outcomes, {2})


@pytest.mark.parametrize("settings", [{"min_pushes": 3}, {"min_pushes": 3, "min_pulled": 0.75}])
def test_rank_that_sleeps_comes_back(settings: dict[str, Any]) -> None:
    outcomes = rank_outcomes(_run, RANKS, {(3, 4): "sleeps"}, settings)
    _ended_alike(outcomes, set())


def test_too_few_ranks_are_one_clear_error_everywhere() -> None:
    outcomes = rank_outcomes(_run, RANKS, {(1, 4): "dies"}, {"min_pushes": "all"})
    for outcome in outcomes:
        if outcome.rank != 1:
            assert outcome.error is not None
            assert "rank 1" in outcome.error
            assert "min_pushes='all' needs 4 of 4 workers, and 3 are left" in outcome.error
            assert "set min_pushes to the workers that may be left" in outcome.error


def test_what_the_docs_say_to_set_costs_nothing_while_all_are_there() -> None:
    """Servers then wait for all: the run is that of the default."""
    settings = {"min_pushes": 3, "push_timeout_s": 20.0}
    default = rank_outcomes(_run, RANKS, {}, {})
    for one, other in zip(default, rank_outcomes(_run, RANKS, {}, settings), strict=True):
        assert torch.equal(one.result[0], other.result[0])


def _warned_at_the_end(dead: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _run({(dead, 3): "dies"}, {"min_pushes": 1})
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("dead", [0, 1])
def test_end_after_the_loss_of_a_host_says_what_torchrun_waits_for(dead: int) -> None:
    survivor = rank_outcomes(_warned_at_the_end, 2, dead, ranks_per_node=1)[1 - dead]
    assert survivor.error is None, survivor.traceback
    assert any(f"rank {dead} is lost" in text for text in survivor.result)
    [warning] = [text for text in survivor.result if "torchrun" in text]
    assert "waits 300 s for its agents on the hosts that were lost" in warning
    assert "SIGKILL" in warning


def _die_together(folder: Path) -> None:
    tempfile.tempdir = str(folder)
    _run({(rank, 3): "dies" for rank in range(2)}, {"min_pushes": 1})


def test_nothing_stays_in_the_temporary_folder_when_all_ranks_are_killed(tmp_path: Path) -> None:
    outcomes = rank_outcomes(_die_together, 2, tmp_path)
    assert [outcome.exit_code for outcome in outcomes] == [-signal.SIGKILL] * 2
    assert not list(tmp_path.iterdir())


def _run_and_tell(folder: Path) -> None:
    # Ranks of a busy machine come to their first meeting seconds apart.
    strategy = lh.PSPStrategy(timeout=timedelta(seconds=5))
    try:
        fit(strategy, BATCHES, _Disturbed({(2, 3): "hangs"}, folder))
    finally:
        leave_mark(folder, str(_rank()))


def test_late_rank_that_nobody_can_do_without_is_named_at_the_limit(tmp_path: Path) -> None:
    outcomes = rank_outcomes(_run_and_tell, 3, tmp_path)
    for rank in (0, 1):
        error = outcomes[rank].error
        assert error is not None
        assert error.startswith("PeerError")
        assert "rank 2" in error
