"""A server's part of a rendezvous: nobody waits for those that have come, and all get the same."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.parameter_server.message import Kind
from tests.unit.psp_served import Served


def test_all_are_sent_the_same_values_when_the_last_has_come() -> None:
    served = Served(3, c=1)
    served.push(0, 0)
    assert served.arrive(0, 1) == []
    assert served.arrive(2, 0) == []
    assert served.arrive(1, 4) == [(0, 4), (1, 4), (2, 4)]
    assert {message.kind for _, message in served.sent} == {Kind.FINAL}
    assert all(message.facts == {"number": 1} for _, message in served.sent)
    assert all(torch.equal(message.payload, served.values) for _, message in served.sent)


def test_what_is_left_of_the_round_is_applied() -> None:
    """Worker 0 has pushed, and has been able to go on without this block."""
    served = Served(3, c=3)
    served.push(0, 0)
    for worker in range(3):
        served.arrive(worker, 1)
    assert torch.equal(served.values, torch.ones(5, dtype=torch.float64))
    assert served.t == 1


def test_rounds_go_on_without_those_that_have_come() -> None:
    served = Served(3)
    served.arrive(0, 0)
    assert served.push(1, 0) == []
    assert served.push(2, 0) == [(1, 1), (2, 1)]
    assert served.arrive(2, 1) == []
    assert served.push(1, 1) == [(1, 2)]


def test_gradients_of_those_that_have_come_count_for_c() -> None:
    served = Served(4, c=3)
    served.push(0, 0)
    served.push(1, 0)
    served.arrive(0, 1)
    served.arrive(1, 1)
    assert served.push(2, 0) == [(2, 1)]
    assert torch.equal(served.values, torch.full((5,), 3.0, dtype=torch.float64))


def test_a_push_that_comes_after_its_worker_did_is_used_and_not_answered() -> None:
    served = Served(2)
    served.arrive(0, 1)
    assert served.push(0, 0) == []
    assert served.arrive(1, 1) == [(0, 1), (1, 1)]
    assert torch.equal(served.values, torch.ones(5, dtype=torch.float64))


def test_a_worker_that_is_gone_is_not_waited_for() -> None:
    served = Served(3)
    served.arrive(0, 0)
    served.arrive(1, 0)
    assert served.leave(2) == [(0, 0), (1, 0)]
    served.arrive(0, 0, 2)
    assert served.leave(0) == []
    assert served.arrive(1, 0, 2) == [(1, 0)]


@pytest.mark.parametrize("how", ["push", "arrive"])
def test_a_successor_hears_from_those_that_went_on_that_a_rendezvous_has_ended(how: str) -> None:
    """Worker 0 had the values of the server that died; worker 1 had not."""
    served = Served(2)
    assert served.arrive(1, 0, 1) == []
    if how == "push":
        assert (1, 0) in served.push(0, 0, final=1)
    else:
        assert served.arrive(0, 0, 2) == [(1, 0)]
    assert served.shard.rendezvous.number == 1


def test_an_abandoned_number_does_not_end_a_rendezvous() -> None:
    """A worker that is one rendezvous ahead means that the other is late."""
    served = Served(2, timeout_s=1.0)
    served.arrive(0, 0, 2)
    assert served.arrive(1, 0, 1) == [(1, 0)]
    assert served.arrive(1, 0, 2) == [(0, 0), (1, 0)]


def test_answer_is_kept_until_all_have_gone_on() -> None:
    served = Served(2)
    served.arrive(0, 0)
    served.arrive(1, 0)
    served.push(0, 0, final=1)
    assert served.arrive(1, 0) == [(1, 0)]  # its answer was lost
    served.push(1, 0, final=1)
    assert served.arrive(1, 0) == []
