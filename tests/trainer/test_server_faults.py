"""Tests parameter servers through the Trainer with ranks that die, raise, stop, sleep or hang."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

import lightning_hier as lh
from examples.loopback import free_port
from tests.ranks import RankOutcome, rank_outcomes
from tests.trainer.breaking import Disturbed, fitted_and_marked
from tests.trainer.fitting import Fitted, Net, fitted, this_rank
from tests.waiting import leave_mark, wait_for_marks

BATCHES = 12
# Longer than the limit of a test: all ranks must end before it has passed.
LONG = timedelta(hours=1)
STRATEGIES: dict[str, Any] = {
    "psp": partial(lh.PSPStrategy, timeout=LONG),
    "psp_partial": partial(lh.PSPStrategy, min_pushes=2, min_pulled=0.5, timeout=LONG),
    "two_stage_of_one": partial(lh.TwoStageASGDStrategy, group_size=1, timeout=LONG),
    "two_stage": partial(lh.TwoStageASGDStrategy, group_size=2, push_period=3, timeout=LONG),
}
# Strategies that tolerate late ranks.
TOLERANT = ["psp_partial", "two_stage"]


def _fit(name: str, disturbances: dict[tuple[int, int], str], **settings: Any) -> Fitted:
    model = partial(Disturbed, disturbances, step_s=0.05)
    validation = {"validate": 2, "num_sanity_val_steps": 0}
    return fitted(STRATEGIES[name], model, BATCHES, max_epochs=2, **validation, **settings)


def _all_name(outcomes: list[RankOutcome], lost: int, text: str = "") -> None:
    for outcome in outcomes:
        if outcome.rank != lost:
            assert outcome.error is not None, f"rank {outcome.rank} has ended without an error"
            assert outcome.error.startswith("PeerError: "), outcome.traceback
            assert f"rank {lost} " in outcome.error and text in outcome.error, outcome.error


@pytest.mark.parametrize(("name", "rank"), [("psp", 1), ("two_stage", 3)])
def test_killed_rank_is_named_by_all_others(name: str, rank: int) -> None:
    """Of two-stage ASGD, a device that serves nobody."""
    outcomes = rank_outcomes(_fit, 4, name, {(rank, 5): "dies"})
    _all_name(outcomes, rank, "is lost: its process has ended")


def test_error_of_a_rank_is_named_by_all_others() -> None:
    outcomes = rank_outcomes(_fit, 4, "two_stage", {(2, 5): "raises"})
    assert outcomes[2].error == "ValueError: this rank's own mistake"
    _all_name(outcomes, 2, "has ended with ValueError: this rank's own mistake")


def _fit_with_store_on_rank_zero(port: int) -> Fitted:
    os.environ["MASTER_PORT"] = str(port)
    return _fit("two_stage_of_one", {(0, 5): "dies"})


def test_lost_rank_is_named_if_it_is_the_master_and_hosts_the_store() -> None:
    env = {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    _all_name(rank_outcomes(_fit_with_store_on_rank_zero, 3, free_port(), env=env), 0)


class _DiesInMetric(Net):
    """Rank 1 is lost while the others wait in collectives as those of a metric object."""

    def on_validation_epoch_end(self) -> None:
        if this_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()
        torch.distributed.all_reduce(torch.zeros(1))


def test_rank_that_is_lost_in_a_collective_is_named() -> None:
    fit = partial(fitted, validate=1, num_sanity_val_steps=0)
    _all_name(rank_outcomes(fit, 4, STRATEGIES["psp"], _DiesInMetric, 4), 1)


class _Stops(Net):
    """Rank 0 stops the last rank for two seconds."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        last = self.trainer.world_size - 1
        if this_rank() == last:  # at any of its batches: a late rank of PSP-SGD skips some
            leave_mark(self.folder, "pid", str(os.getpid()))
        if batch_idx == 5 and this_rank() == 0:
            wait_for_marks(self.folder, "pid")
            pid = int((self.folder / "pid").read_text())
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(2.0)
            finally:
                os.kill(pid, signal.SIGCONT)
        return super().training_step(batch, batch_idx)


def _ended_alike(outcomes: list[RankOutcome], steps: int) -> None:
    for outcome in outcomes:
        assert outcome.error is None, f"rank {outcome.rank}: {outcome.traceback}"
        result, first = outcome.result, outcomes[0].result
        assert result.steps == steps
        assert result.weights.isfinite().all()
        assert torch.equal(result.weights, first.weights)
        assert result.logged == first.logged


@pytest.mark.parametrize("name", TOLERANT)
def test_rank_that_is_stopped_takes_part_again(name: str, tmp_path: Path) -> None:
    model = partial(_Stops, tmp_path)
    _ended_alike(rank_outcomes(fitted, 4, STRATEGIES[name], model, BATCHES), BATCHES)


class _GetsSignal(Net):
    """Every rank gets SIGTERM, each at another of its batches."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx >= 3 + this_rank() and not self.notes:
            self.notes.append("signal")
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("name", TOLERANT)
def test_signal_at_different_batches_ends_all_ranks_with_a_save(name: str, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, save_on_exception=True)
    saving = {"enable_checkpointing": True, "callbacks": [saver]}
    outcomes = rank_outcomes(fitted, 4, STRATEGIES[name], _GetsSignal, BATCHES, **saving)
    for outcome in outcomes:
        assert outcome.error == "SIGTERMException: ", outcome.traceback
    assert len(list(tmp_path.glob("*.ckpt"))) == 1


def _die(folder: Path) -> None:
    tempfile.tempdir = str(folder)
    _fit("psp", {(rank, 3): "dies" for rank in range(2)})


def test_nothing_stays_in_the_temporary_folder_when_ranks_are_killed(tmp_path: Path) -> None:
    """The second rank may raise the loss of the first before it comes to its own death."""
    outcomes = rank_outcomes(_die, 2, tmp_path)
    assert -signal.SIGKILL in [outcome.exit_code for outcome in outcomes]
    assert not list(tmp_path.iterdir())


def test_late_rank_that_is_needed_is_named_at_the_limit(tmp_path: Path) -> None:
    # On a busy machine, ranks start their first collective seconds apart.
    strategy = partial(lh.PSPStrategy, timeout=timedelta(seconds=5))
    model = partial(Disturbed, {(2, 3): "hangs"}, tmp_path, step_s=0.05)
    outcomes = rank_outcomes(fitted_and_marked, 3, tmp_path, strategy, model, BATCHES)
    for outcome in outcomes[:2]:
        assert outcome.error is not None and outcome.error.startswith("PeerError")
        assert "for rank 2: see the log of rank 2" in outcome.error
