"""Tests a rank that stops for a while under parameter servers, for less or more than `grace_s`."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import rank_outcomes
from tests.trainer.fitting import Fitted, Net, fitted, this_rank
from tests.waiting import WAIT_S, leave_mark, wait_for_marks, wait_until

RANKS = 3
BATCHES = 30
STOPPED = 2
# An interruption is detected after two heartbeats of one second, so each test takes seconds.
SHORT_S = 1.0


class _Interrupted(Net):
    """Rank 0 stops the last rank until it is lost, or for longer than `SHORT_S`."""

    def __init__(self, folder: Path, *, until_lost: bool) -> None:
        super().__init__()
        self.folder, self.until_lost = folder, until_lost

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rank = self.trainer.global_rank
        if rank == STOPPED:  # at any of its batches: a late rank of PSP-SGD skips some
            leave_mark(self.folder, "pid", str(os.getpid()))
        if batch_idx == 5 and rank == 0:
            wait_for_marks(self.folder, "pid")
            self._interrupt(int((self.folder / "pid").read_text()))
        return super().training_step(batch, batch_idx)

    def _interrupt(self, pid: int) -> None:
        session = self.trainer.strategy._session
        watch = session._ports.watch
        os.kill(pid, signal.SIGSTOP)
        try:
            if self.until_lost:
                wait_until(lambda: STOPPED in session.lost(), "the loss of the stopped rank")
            else:
                wait_until(lambda: watch._peers[STOPPED].unreachable_s > 2 * SHORT_S, "its absence")
        finally:
            os.kill(pid, signal.SIGCONT)
        if self.until_lost:  # the other ranks send the loss to it only while they train
            wait_for_marks(self.folder, "ended")


STRATEGIES: dict[str, Any] = {
    "psp": partial(lh.PSPStrategy, min_pushes=2),
    "two_stage_asgd": partial(lh.TwoStageASGDStrategy, group_size=1),
}


def _run(folder: Path, name: str, grace_s: float) -> Fitted:
    limit = timedelta(seconds=2 * WAIT_S)
    strategy = partial(STRATEGIES[name], grace_s=grace_s, timeout=limit)
    model = partial(_Interrupted, folder, until_lost=grace_s == SHORT_S)
    try:
        return fitted(strategy, model, BATCHES, num_sanity_val_steps=0)
    finally:
        if this_rank() == STOPPED:
            leave_mark(folder, "ended")


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("grace_s", [SHORT_S, WAIT_S])
def test_rank_that_is_stopped(name: str, grace_s: float, tmp_path: Path) -> None:
    outcomes = rank_outcomes(_run, RANKS, tmp_path, name, grace_s)
    if grace_s == SHORT_S:
        error = outcomes.pop(STOPPED).error
        assert error is not None and error.startswith("PeerError: the other ranks continue without")
        assert "its connection broke and has not come back for grace_s=1 s" in error
        assert "set grace_s above the duration of such interruptions" in error
    for outcome in outcomes:
        assert outcome.error is None, outcome.traceback
        assert outcome.result.steps == BATCHES
        assert torch.equal(outcome.result.weights, outcomes[0].result.weights)
