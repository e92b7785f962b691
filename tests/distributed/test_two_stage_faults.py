"""Ranks of two-stage ASGD that stop or are slow, and the shared memory of a killed job."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hier.parameter_server.two_stage import shared_memory
from tests.distributed.two_stage_world import two_stage_world
from tests.ranks import RankOutcome, rank_outcomes
from tests.waiting import leave_mark, nothing_stays_in, wait_for_marks, wait_until

STEPS = 60


def _train(
    victim: int,
    fault: str,
    settings: dict[str, Any],
    group_size: int = 2,
    folder: Path | None = None,
) -> Tensor:
    """Train on this rank. In the middle, the victim is killed or waits for the others.

    With a folder, it waits until rank 0 has completed its steps and has left a mark there.
    Otherwise, it waits until the others have ended with an error.
    """
    rank = int(os.environ["RANK"])
    parameter = nn.Parameter(torch.ones(100))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    with two_stage_world([optimizer], group_size, push_period=2, **settings) as world:
        for step in range(STEPS):
            parameter.grad = parameter.detach().clone()
            if rank == victim and step == STEPS // 2:
                if fault == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif folder is not None:
                    wait_for_marks(folder, "0")
                else:
                    wait_until(lambda: world.channel._server_loop.failure, "the end of the others")
            world.engine.workers[0].step()
            time.sleep(0.002)
        if folder is not None:
            leave_mark(folder, str(rank))
        world.engine.rendezvous()
        return parameter.detach().clone()


def _all_ended_alike(outcomes: list[RankOutcome]) -> None:
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    models = [outcome.result for outcome in outcomes]
    assert all(torch.equal(model, models[0]) for model in models)
    assert models[0].isfinite().all() and models[0].max() < 1.0


def test_node_that_stops_is_named_by_all_that_wait_for_its_turn() -> None:
    """On a busy machine, rank 2 may be late as well, and is then named beside rank 1."""
    outcomes = rank_outcomes(_train, 3, 1, "stands still", {"timeout_s": 3.0}, group_size=1)
    # A node waits for its turn, and for all nodes at the end of the epoch. Either of the two limits
    # may pass first.
    limit = "(for the push of a node|at the end of an epoch)"
    named = rf"{limit}, for ranks? 1\b.*: see the log of ranks? 1\b"
    for rank in (0, 2):
        error = outcomes[rank].error
        assert error is not None and error.startswith("PeerError")
        assert re.search(named, error) or (
            rank == 2 and "rank 0" in error  # the node of the master has ended first
        )


def test_without_order_locking_no_node_waits_for_a_slow_one(tmp_path: Path) -> None:
    """The slow node continues after the other one has completed its steps.

    The other node waits for it at the end of the epoch.
    """
    settings = {"order_locking": False}
    outcomes = rank_outcomes(_train, 2, 1, "slow", settings, group_size=1, folder=tmp_path)
    _all_ended_alike(outcomes)


def test_nothing_is_left_in_shared_memory_by_a_killed_job() -> None:
    with nothing_stays_in(shared_memory.FOLDER):
        outcomes = rank_outcomes(_train, 2, 0, "killed", {})
    assert outcomes[0].died
