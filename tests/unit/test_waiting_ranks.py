"""Servers do not wait for ranks that wait in a live-rank collective, until it is complete."""

from __future__ import annotations

from itertools import permutations
from threading import Event
from typing import Any

import pytest

from lightning_hier.parameter_server.live_collectives import CollectiveLeader, LiveCollectives
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.rendezvous import WaitingRanks
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Handler
from tests.unit.local_ports import LocalNetwork, LocalServerPort, on_every_rank
from tests.unit.test_psp_takeover import Server
from tests.unit.two_stage_talk import ETA, Talk, ones
from tests.waiting import WAIT_S


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


def test_waiting_rank_repeats_its_notice_until_the_collective_is_complete() -> None:
    """Rank 1 joins after rank 0 has sent two notices that it waits. A notice may be lost."""
    notices: list[tuple[int, int]] = []
    twice = Event()
    network = LocalNetwork(2)

    def record(sender: int, to: int, message: Message) -> bool:
        if message.kind == Kind.WAITING and sender == 0:
            notices.append((to, message.timestamp))
            if len(notices) == 2:
                twice.set()
        return False

    network.lose = record

    def handlers(rank: int, port: LocalServerPort) -> list[Handler]:
        return [CollectiveLeader(2, port, limit_s=WAIT_S)]

    def gather(rank: int, channel: RequestChannel) -> int:
        collectives = LiveCollectives(2, channel, retry_s=0.02, notified=[1])
        if rank == 1:
            assert twice.wait(WAIT_S)
        collectives.all_gather()
        return channel.collectives_done

    assert on_every_rank(network, handlers, gather, timeout_s=WAIT_S) == [1, 1]
    assert set(notices) == {(1, 1)}


class _PSP(Server):
    """Rank 1 of 4, which serves shard 1."""

    def push_own(
        self, worker: int, timestamp: int, collectives_done: int = 0
    ) -> list[tuple[int, int]]:
        facts = {
            "version": timestamp,
            "final": 0,
            "steps": 0,
            "absent": [],
            "collectives_done": collectives_done,
        }
        groups = [{"lr": 1.0}]
        answers = self.hear(
            worker, Kind.PUSH, timestamp, -1.0, block=1, hyperparameters=groups, **facts
        )
        return [(to, version) for to, _, version in answers]

    def wait(self, worker: int, number: int = 1) -> list[tuple[int, int]]:
        answers = self.hear(worker, Kind.WAITING, number)
        return [(to, version) for to, _, version in answers]


def test_psp_waits_for_all_again_after_a_push_reports_the_collective_as_complete() -> None:
    server = _PSP(c="all")
    for worker in (0, 1, 2):
        server.wait(worker)
    assert server.push_own(3, 0, collectives_done=1) == []
    server.wait(0)  # sent before the collective was complete, and delayed
    assert server.push_own(0, 0, collectives_done=1) == []
    assert server.push_own(1, 0, collectives_done=1) == []
    assert server.push_own(2, 0, collectives_done=1) == [(worker, 1) for worker in range(4)]


def test_psp_successor_does_not_wait_for_waiting_ranks() -> None:
    """They have notified all servers. Rank 1 takes over shard 0 afterwards."""
    server = Server(c=2)
    for worker in (1, 2):
        server.hear(worker, Kind.WAITING, 1)
    server.gone(0)
    for worker in (1, 2, 3):
        server.hold(worker, 5, 1.0)
    assert server.push(3, 5) == [(3, Kind.BLOCK, 6)]


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


def test_turn_passes_when_the_rank_that_does_not_wait_dies() -> None:
    talk = Talk()
    talk.push(0, ones(1.0), 1)
    talk.push(2, ones(1.0), 1)
    talk.push(2, ones(1.0), 1)
    assert _wait(talk, 0) == []
    talk.master.peer_gone(1, now=0.0)
    assert [to for to, _ in talk.sent] == [2]


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
