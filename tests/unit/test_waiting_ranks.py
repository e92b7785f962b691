"""Servers do not wait for ranks that wait in a collective of all ranks, until it is complete."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server import WaitingRanks


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
