"""The master of two-stage ASGD, message by message."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.two_stage.master_model import MasterModel
from lightning_hier.parameter_server.user_optimizer import hyperparameters
from tests.unit.two_stage_talk import ETA, LIMIT_S, Talk, ones


@given(st.integers(1, 50), st.floats(-4.0, 4.0))
def test_gamma_is_eta_over_the_pushs_own_count(count: int, value: float) -> None:
    """Eq. 4 and 5; a short last push has a count of its own."""
    talk = Talk((0,))
    [(to, answer)] = talk.push(0, ones(value), count)
    expected = ones(0.0) - ETA / count * ones(value)
    torch.testing.assert_close(answer.payload, expected, rtol=1e-12, atol=0.0)
    assert (to, answer.kind, answer.timestamp) == (0, Kind.BLOCK, 1)


def test_without_hierarchical_rate_gamma_is_eta() -> None:
    talk = Talk((0,), hierarchical_lr=False)
    [(_, answer)] = talk.push(0, ones(3.0), 4)
    torch.testing.assert_close(answer.payload, -ETA * ones(3.0), rtol=1e-12, atol=0.0)


def test_rate_travels_with_the_push() -> None:
    talk = Talk((0,))
    talk.optimizer.param_groups[0]["lr"] = 2.0  # as a scheduler on the node would
    [(_, answer)] = talk.push(0, ones(1.0), 1)
    assert answer.payload.tolist() == [-2.0] * 3
    assert len(talk.optimizer.param_groups[0]["params"]) == 1 and not talk.optimizer.state


def test_pushes_wait_for_their_turn() -> None:
    talk = Talk()
    assert [to for to, _ in talk.push(2, ones(1.0), 1)] == [2]
    assert talk.push(2, ones(2.0), 1) == []
    assert [to for to, _ in talk.push(0, ones(4.0), 1)] == [0, 2]
    assert talk.push(2, ones(8.0), 1) == []
    assert [to for to, _ in talk.push(0, ones(16.0), 1)] == [0, 2]
    assert talk.master.parts[0].order == [2, 0]
    assert talk.model.flat().tolist() == [-ETA * 31.0] * 3


def test_without_order_locking_pushes_are_taken_as_they_come() -> None:
    talk = Talk(order_locking=False)
    for _ in range(3):
        assert [to for to, _ in talk.push(2, ones(1.0), 1)] == [2]
    assert talk.model.version == 3


def test_staleness_counts_the_versions_since_the_pull() -> None:
    talk = Talk(order_locking=False)
    talk.push(2, ones(1.0), 1, version=0)
    [(_, answer)] = talk.push(0, ones(1.0), 1, version=0)
    assert answer.facts["staleness"] == 1
    talk.push(2, ones(1.0), 1, version=1)
    assert (talk.counts.staleness_sum, talk.counts.staleness_max) == (2, 1)


def test_push_that_comes_twice_is_applied_once() -> None:
    """A node repeats itself when an answer may have been lost on the way."""
    talk = Talk()
    told = talk.facts(1)
    push = Message(Kind.PUSH, 0, 0, told, ones(1.0))
    talk.say(0, push)
    [(to, again)] = talk.say(0, push)
    assert to == 0 and again.facts["number"] == 1 and talk.model.version == 1
    waiting = Message(Kind.PUSH, 0, 1, told | {"number": 2}, ones(1.0))
    assert talk.say(0, waiting) == [] == talk.say(0, waiting)
    assert len(talk.push(2, ones(1.0), 1)) == 2
    assert talk.model.version == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_sum_that_is_not_finite_stays_out(bad: float) -> None:
    talk = Talk((0,))
    [(_, answer)] = talk.push(0, torch.tensor([0.0, bad, 0.0], dtype=torch.float64), 2)
    assert answer.payload.tolist() == [0.0] * 3
    assert (talk.model.version, talk.counts.nonfinite) == (0, 1)


@pytest.mark.parametrize(
    ("total", "facts"),
    [
        (torch.zeros(2, dtype=torch.float64), {}),
        (torch.zeros(3), {}),
        (None, {}),
        (torch.zeros(3, dtype=torch.float64), {"count": 0}),
        (torch.zeros(3, dtype=torch.float64), {"count": "many"}),
        (torch.zeros(3, dtype=torch.float64), {"number": None}),
        (torch.zeros(3, dtype=torch.float64), {"hyperparameters": "no"}),
        (torch.zeros(3, dtype=torch.float64), {"absent": None}),
        (torch.zeros(3, dtype=torch.float64), {"absent": ["first"]}),
    ],
)
def test_push_that_cannot_be_meant_is_dropped(total: Tensor | None, facts: dict[str, Any]) -> None:
    talk = Talk((0,))
    assert talk.push(0, total, **{"count": 1} | facts) == []
    assert (talk.model.version, talk.counts.malformed) == (0, 1)


def test_ranks_that_are_no_nodes_and_blocks_that_do_not_exist_are_ignored() -> None:
    talk = Talk((0, 2))
    talk._numbers[1] = 0
    assert talk.push(1, ones(1.0), 1) == []
    assert talk.say(0, Message(Kind.PUSH, 7)) == []
    talk.master.peer_gone(1, 0.0)
    assert talk.model.version == 0


def test_turn_of_a_node_that_dies_passes_to_the_next() -> None:
    talk = Talk((0, 2, 4))
    for node in (0, 2, 4):
        talk.push(node, ones(1.0), 1)
    assert talk.push(2, ones(1.0), 1) == []
    talk.sent.clear()
    talk.master.peer_gone(0, 0.0)
    assert [to for to, _ in talk.sent] == [2]


def test_node_without_its_turn_is_told_who_is_missing() -> None:
    talk = Talk()
    talk.push(2, ones(1.0), 1, now=1.0)
    talk.push(2, ones(1.0), 1, now=3.0)
    assert talk.master.deadline() == 3.0 + LIMIT_S
    talk.master.tick(3.0 + LIMIT_S - 0.1)
    assert talk.sent == []
    talk.master.tick(3.0 + LIMIT_S)
    [(to, told)] = talk.sent
    assert (to, told.kind, told.timestamp) == (2, Kind.MISSING, 1)
    assert told.facts == {"missing": [0], "waiting": "for the push of a node"}
    assert talk.master.deadline() == math.inf


def test_repetition_does_not_begin_the_wait_anew() -> None:
    talk = Talk()
    talk.push(2, ones(1.0), 1)
    told = talk.facts(2)
    for now in (1.0, 5.0):
        talk.say(2, Message(Kind.PUSH, 0, 1, told, ones(1.0)), now)
    assert talk.master.deadline() == 1.0 + LIMIT_S
    talk.push(0, ones(1.0), 1)
    for now in (2.0, 6.0):
        talk.arrive(0, now=now)
    assert talk.master.deadline() == 2.0 + LIMIT_S


def test_all_nodes_get_one_model_when_the_last_has_arrived() -> None:
    talk = Talk()
    talk.push(0, ones(1.0), 1)
    assert talk.arrive(0) == []
    assert len(talk.push(2, ones(1.0), 1)) == len(talk.push(2, ones(1.0), 1)) == 1  # alone now
    finals = talk.arrive(2)
    assert sorted(to for to, _ in finals) == [0, 2]
    assert {message.kind for _, message in finals} == {Kind.FINAL}
    assert all(message.payload.tolist() == [-ETA * 3] * 3 for _, message in finals)
    # In the next epoch the order is the same, and begins with its first node.
    assert talk.push(2, ones(1.0), 1) == []
    assert [to for to, _ in talk.push(0, ones(1.0), 1)] == [0, 2]


def test_answer_that_is_still_queued_is_not_sent_again() -> None:
    talk = Talk()
    talk.push(0, ones(1.0), 1)
    told = talk.facts(1)
    talk.replies.sending = {b"0"}
    assert talk.say(0, Message(Kind.PUSH, 0, 0, told, ones(1.0))) == []
    talk.replies.sending = set()
    [(to, again)] = talk.say(0, Message(Kind.PUSH, 0, 0, told, ones(1.0)))
    assert (to, again.kind, again.facts["number"]) == (0, Kind.BLOCK, 1)
    assert talk.counts.pushes == 1


def test_final_that_was_lost_is_sent_again_unchanged() -> None:
    talk = Talk()
    talk.arrive(0)
    talk.arrive(2)
    talk.push(2, ones(1.0), 1)
    [(to, again)] = talk.arrive(0)
    assert to == 0 and again.payload.tolist() == [0.0] * 3
    talk.push(0, ones(1.0), 1)
    assert talk.arrive(0) == []  # no node can have missed it now


def test_final_is_kept_where_only_an_old_push_comes_again() -> None:
    """A repetition may be overtaken on the way: it does not say that the final has come."""
    talk = Talk((0,))
    push = Message(Kind.PUSH, 0, 0, talk.facts(1), ones(1.0))
    talk.say(0, push)
    talk.arrive(0)
    talk.say(0, push)
    [(to, again)] = talk.arrive(0)
    assert (to, again.kind) == (0, Kind.FINAL)


@pytest.mark.parametrize(("rank", "number"), [(1, 1), (0, 2), (0, 0), (0, -1)])
def test_arrival_that_cannot_be_meant_is_ignored(rank: int, number: int) -> None:
    talk = Talk()
    assert talk.arrive(rank, number) == []
    assert talk.arrive(0) == [] and len(talk.arrive(2)) == 2


def test_node_at_the_epochs_end_is_told_who_is_missing() -> None:
    talk = Talk((0, 2, 4))
    talk.arrive(4, now=5.0)
    talk.master.tick(5.0 + LIMIT_S)
    [(to, told)] = talk.sent
    assert to == 4 and told.facts == {"missing": [0, 2], "waiting": "at the end of an epoch"}


def test_epoch_ends_without_a_node_that_died() -> None:
    talk = Talk()
    talk.arrive(0)
    talk.sent.clear()
    talk.master.peer_gone(2, 0.0)
    assert [(to, message.kind) for to, message in talk.sent] == [(0, Kind.FINAL)]
    assert [to for to, _ in talk.push(0, ones(1.0), 1)] == [0]


def test_warm_up_steps_take_the_mean_of_all_nodes_once_all_are_there() -> None:
    talk = Talk()
    assert talk.push(2, ones(6.0), 2, together=True) == []
    answers = talk.push(0, ones(3.0), 1, together=True)
    assert [to for to, _ in answers] == [0, 2]
    assert all(message.payload.tolist() == [-ETA * 3.0] * 3 for _, message in answers)
    assert talk.push(0, None, 0, together=True) == []
    assert len(talk.push(2, ones(1.0), 1, together=True)) == 2
    assert talk.model.flat().tolist() == [-ETA * 4.0] * 3
    assert talk.master.parts[0].order == []
    talk.push(0, None, 0, together=True)
    talk.master.tick(LIMIT_S)
    assert talk.sent[-1][1].facts == {"missing": [2], "waiting": "for the push of a node"}


def test_snapshot_is_a_copy_and_what_it_holds_can_be_loaded() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))]
    optimizer = torch.optim.Adam(parameters, lr=0.5)
    model = MasterModel(optimizer, parameters)
    told = hyperparameters(optimizer)
    model.apply(torch.ones(10), 1, rate_factor=1.0, hyperparameters=told)
    values, state = model.snapshot()
    before = values.clone()
    other = MasterModel(optimizer, parameters)
    other.load(state)
    for both in (model, other):
        both.apply(torch.arange(10.0), 2, rate_factor=1.0, hyperparameters=told)
    assert torch.equal(values, before)
    moments = [one.snapshot()[1][1]["exp_avg"] for one in (model, other)]
    assert torch.equal(*moments)
