"""PSP-SGD on real ranks and sockets: equal to its twin, late on purpose, and with dead ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, optim
from torch.nn import Parameter

from lightning_hier.parameter_server.psp.settings import PullRule, PushRule
from tests.distributed.psp_world import psp_world
from tests.equivalence.optimizer_twins import Sgd
from tests.equivalence.psp_twins import synchronous
from tests.equivalence.test_psp import loss_gradients, start
from tests.ranks import RankOutcome, rank_outcomes, run_ranks
from tests.waiting import leave_mark, wait_for_marks, wait_until

STEPS = 20


def _train(
    faults: dict[int, tuple[str, int]] | None = None,
    *,
    c: Any = "all",
    b: float = 1.0,
    steps: int = STEPS,
    rendezvous_at: tuple[int, ...] = (),
    pause_s: float = 0.0,
    folder: Path | None = None,
    **settings: Any,
) -> tuple[list[Tensor], dict[str, float]]:
    """Train on this rank; a fault is what happens to a rank before one of its steps.

    One that is late goes on when rank 0 has made half its steps, as it marks in the folder.
    """
    rank = int(os.environ["RANK"])
    own = [Parameter(value) for value in start()]
    optimizer = optim.SGD(own, lr=0.01, momentum=0.9, weight_decay=0.01)
    with psp_world([optimizer], push_rule=PushRule(c), pull_rule=PullRule(b), **settings) as world:
        for step in range(steps):
            fault, at = (faults or {}).get(rank, ("", -1))
            if step == at and fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if step == at and fault == "late" and folder is not None:
                wait_for_marks(folder, "0")
            if step in rendezvous_at:
                world.engine.rendezvous()
            time.sleep(pause_s)
            for parameter, gradient in zip(own, loss_gradients(rank, step, own), strict=True):
                parameter.grad = gradient
            world.engine.step(0)
            if folder is not None and step == steps // 2:
                leave_mark(folder, str(rank))
        world.engine.rendezvous()
        return [one.detach().clone() for one in own], world.engine.metrics()


def _models(outcomes: list[RankOutcome]) -> list[list[Tensor]]:
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    models = [outcome.result[0] for outcome in outcomes]
    for model in models:
        assert all(torch.equal(one, other) for one, other in zip(model, models[0], strict=True))
        assert all(one.isfinite().all() for one in model)
    return models


def test_all_pushes_and_all_blocks_are_the_twin_and_the_same_bits_twice() -> None:
    rule = Sgd(lr=0.04, momentum=0.9, weight_decay=0.01)
    expected = synchronous(start(), loss_gradients, rule, workers=4, steps=STEPS)
    runs = [run_ranks(_train, 4, rendezvous_at=at) for at in ((), (3, 7))]
    for results in runs:
        for model, metrics in results:
            for one, other in zip(model, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
            assert metrics["hier/psp/dropped"] == 0
            assert metrics["hier/psp/staleness"] == 0
            assert metrics["hier/psp/rounds"] == STEPS
            assert metrics["hier/psp/gradients_per_round"] == 4
    for one, other in zip(runs[0][0][0], runs[1][0][0], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("at", [0, 7])
@pytest.mark.parametrize("victim", [0, 3])
def test_the_others_end_with_one_model_when_a_rank_is_killed(victim: int, at: int) -> None:
    outcomes = rank_outcomes(_train, 4, {victim: ("killed", at)}, c=3, rendezvous_at=(10,))
    assert outcomes[victim].died
    living = [outcome for outcome in outcomes if outcome.rank != victim]
    _models(living)
    takeovers = [outcome.result[1]["hier/psp/takeovers"] for outcome in living]
    assert sum(takeovers) == 1
    assert outcomes[(victim + 1) % 4].result[1]["hier/psp/takeovers"] == 1


def test_two_ranks_are_killed_one_after_the_other() -> None:
    faults = {1: ("killed", 4), 2: ("killed", 12)}
    outcomes = rank_outcomes(_train, 4, faults, c=2, b=0.5, pause_s=0.05)
    _models([outcomes[0], outcomes[3]])


def test_below_the_quorum_all_are_told_who_is_lost() -> None:
    outcomes = rank_outcomes(_train, 4, {2: ("killed", 5)}, c=4)
    for rank in (0, 1, 3):
        error = outcomes[rank].error
        assert error is not None and error.startswith("QuorumError: ")
        assert "rank 2" in error and "4 of 4" in error


def test_a_late_rank_is_not_waited_for_where_the_rules_say_so(tmp_path: Path) -> None:
    """The others make half their steps while it stands still, and wait for it at the end.

    Not all their steps: where one of three is a step behind when the other two have come to the
    end, servers have no three that still push, and wait for the late one.
    """
    results = run_ranks(_train, 4, {1: ("late", 3)}, c=3, b=0.75, folder=tmp_path)
    for model, _ in results:
        assert all(torch.equal(one, other) for one, other in zip(model, results[0][0], strict=True))
    dropped = sum(metrics["hier/psp/dropped"] for _, metrics in results)
    assert dropped > 0


def test_one_rank_takes_a_snapshot_and_the_others_go_on() -> None:
    (values, states, at), *_ = run_ranks(_snapshot, 4)
    assert all(torch.equal(one, other) for one, other in zip(values, at, strict=True))
    own = [Parameter(value) for value in values]
    plain = optim.SGD(own, lr=0.01, momentum=0.9)
    plain.load_state_dict({**plain.state_dict(), "state": states})
    assert all(plain.state[one]["momentum_buffer"].shape == one.shape for one in own)


def _snapshot() -> tuple[list[Tensor], dict[int, Any], list[Tensor]]:
    """No server has moved since this rank's last step, as none can without it."""
    rank = int(os.environ["RANK"])
    own = [Parameter(value) for value in start()]
    optimizer = optim.SGD(own, lr=0.01, momentum=0.9)
    found: tuple[list[Tensor], dict[int, Any], list[Tensor]] = ([], {}, [])
    with psp_world([optimizer], push_rule=PushRule(), pull_rule=PullRule()) as world:
        for step in range(8):
            if rank == 0 and step == 5:
                snapshot = world.engine.snapshot()
                values = [snapshot.values[one] for one in own]
                at = [one.detach().clone() for one in own]
                found = values, dict(snapshot.optimizer_states[0]), at
            for parameter, gradient in zip(own, loss_gradients(rank, step, own), strict=True):
                parameter.grad = gradient
            world.engine.step(0)
        world.engine.rendezvous()
    return found


def test_a_rank_that_does_not_come_is_named() -> None:
    outcomes = rank_outcomes(_stop_early, 3)
    for rank in (0, 2):
        assert outcomes[rank].error is not None
        assert "for rank 1" in str(outcomes[rank].error)


def _stop_early() -> None:
    rank = int(os.environ["RANK"])
    own = [Parameter(value) for value in start()]
    optimizer = optim.SGD(own, lr=0.01)
    with psp_world([optimizer], push_rule=PushRule(), pull_rule=PullRule(), timeout_s=2.0) as world:
        for step in range(4):
            if rank == 1 and step == 2:
                wait_until(lambda: world.client.gone() == {0, 2}, "the end of the others")
                raise RuntimeError("was late")
            for parameter in own:
                parameter.grad = torch.ones_like(parameter)
            world.engine.step(0)
