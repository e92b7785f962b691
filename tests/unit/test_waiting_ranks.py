"""Servers do not wait for ranks that wait in a collective of all ranks, until it is complete."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.rendezvous import WaitingRanks
from tests.unit.psp_served import Served
from tests.unit.two_stage_talk import ETA, Talk, ones


def _received(rank: int, kind: Kind, number: int, **facts: Any) -> Received:
    return Received(rank, b"", Message(kind, 0, number, facts))


def test_collective_is_complete_when_a_rank_has_left_it_for_any_order_of_messages() -> None:
    messages = [
        _received(0, Kind.WAITING, 1),
        _received(0, Kind.WAITING, 1),
        _received(1, Kind.WAITING, 2),
        _received(2, Kind.PUSH, 7, collectives_done=1),
    ]
    for order in permutations(messages):
        waiting_ranks = WaitingRanks()
        for one in order:
            waiting_ranks.note(one)
        assert waiting_ranks.ranks() == {1}


def test_psp_waits_for_all_again_after_a_push_reports_the_collective_as_complete() -> None:
    served = Served(4)

    def wait(worker: int) -> None:
        served.waiting_ranks.note(_received(worker, Kind.WAITING, 1))

    for worker in (0, 1, 2):
        wait(worker)
    assert served.push(3, 0, collectives_done=1) == []
    wait(0)  # sent before the collective was complete, and delayed
    assert served.push(0, 0, collectives_done=1) == []
    assert served.push(1, 0, collectives_done=1) == []
    assert served.push(2, 0, collectives_done=1) == [(worker, 1) for worker in range(4)]


def test_psp_does_not_wait_for_waiting_ranks() -> None:
    served = Served(4, c=2)
    for worker in (0, 1, 2):
        served.waiting_ranks.note(_received(worker, Kind.WAITING, 1))
    assert served.push(3, 0) == [(3, 1)]


def _wait(talk: Talk, *ranks: int, number: int = 1) -> list[int]:
    return [to for rank in ranks for to, _ in talk.say(rank, Message(Kind.WAITING, 0, number))]


def test_turn_of_a_node_passes_while_all_its_ranks_wait() -> None:
    talk = Talk()
    talk.push(0, ones(1.0), 1)
    talk.push(2, ones(2.0), 1)
    assert talk.push(2, ones(4.0), 1) == []
    assert _wait(talk, 0) == []
    assert _wait(talk, 1) == [2]
    assert [to for to, _ in talk.push(2, ones(8.0), 1)] == [2]
    assert talk.push(2, ones(16.0), 1, collectives_done=1) == []
    assert [to for to, _ in talk.push(0, ones(32.0), 1, collectives_done=1)] == [0, 2]
    assert talk.model.flat().tolist() == [-ETA * 63.0] * 3


def test_push_of_a_node_keeps_its_turn_while_its_ranks_wait() -> None:
    talk = Talk((0, 2, 4))
    for node in (0, 2, 4):
        talk.push(node, ones(1.0), 1)
    assert talk.push(4, ones(1.0), 1) == []
    assert talk.push(2, ones(1.0), 1) == []
    assert _wait(talk, 2, 3) == []
    assert _wait(talk, 0, 1) == [2, 4]


@pytest.mark.parametrize("first", [0, 2])
def test_node_in_a_collective_need_not_have_pushed(first: int) -> None:
    """A second push waits for the first push of all nodes, except nodes whose ranks wait."""
    talk = Talk()
    other = 2 - first
    talk.push(first, ones(1.0), 1)
    assert talk.push(first, ones(1.0), 1) == []
    assert _wait(talk, other, other + 1) == [first]
    assert [to for to, _ in talk.push(other, ones(1.0), 1, collectives_done=1)] == [other]
