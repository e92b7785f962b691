"""Ranks of two-stage ASGD that stand still or are slow, and what a killed job leaves behind.

Who goes on without a rank that dies: tests/trainer/test_two_stage.py.
"""

from __future__ import annotations

import os
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
    """Train on this rank; the victim is killed, or stands still until the others are where it says.

    They have made all their steps, and left a mark in the folder, or they have given up.
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
                    wait_until(lambda: world.channel.gone() == {0, 2}, "the end of the others")
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


def test_node_that_stands_still_is_named_by_all_that_wait_for_its_turn() -> None:
    outcomes = rank_outcomes(_train, 3, 1, "stands still", {"timeout_s": 3.0}, group_size=1)
    for rank in (0, 2):
        error = outcomes[rank].error
        assert error is not None and error.startswith("PeerError")
        # A node waits for its turn, and at the epoch's end for all: either limit can pass first.
        named = "for the push of a node, for rank 1", "at the end of an epoch, for rank 1"
        assert ("see the log of rank 1" in error and any(text in error for text in named)) or (
            rank == 2 and "rank 0" in error  # the master's own node was told first
        )


def test_slow_node_holds_up_none_without_an_order(tmp_path: Path) -> None:
    """It goes on when the other one has made all its steps, which waits for it at the end."""
    settings = {"order_locking": False}
    outcomes = rank_outcomes(_train, 2, 1, "slow", settings, group_size=1, folder=tmp_path)
    _all_ended_alike(outcomes)


def test_nothing_is_left_in_shared_memory_by_a_killed_job() -> None:
    with nothing_stays_in(shared_memory.FOLDER):
        outcomes = rank_outcomes(_train, 2, 0, "killed", {})
    assert outcomes[0].died
