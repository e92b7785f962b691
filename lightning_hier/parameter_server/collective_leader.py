"""Leader of collectives of the live ranks, and ranks that wait in a collective.

The lowest live rank is the leader. It collects the contributions and sends the result to all ranks.
If it is lost, the next rank becomes the leader. Ranks that already have the result forward it to
the new leader, so that all ranks get the same result.

A rank that waits in a collective does not push until all ranks have reached it. Ranks that have not
reached it may need the answer of a server first. A server therefore does not wait for waiting
ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.rendezvous import Rendezvous
from lightning_hier.parameter_server.server_loop import Replies


@dataclass(frozen=True)
class Contribution:
    """Data of a rank: a value that JSON can represent, and a tensor, which may be empty."""

    value: Any
    payload: Tensor


class CollectiveLeader:
    """Handler that leads collectives on the lowest live rank.

    Args:
        world_size: number of ranks.
        replies: port of the rank.
        limit_s: seconds after which waiting ranks get the list of missing ranks.

    """

    kinds = frozenset({Kind.CONTRIBUTION, Kind.RESULT})

    def __init__(self, world_size: int, replies: Replies, *, limit_s: float) -> None:
        self._live = set(range(world_size))
        self._rendezvous = Rendezvous(replies, limit_s)

    def handle(self, received: Received, now: float) -> None:
        """Store a contribution, or a result of a lost leader."""
        message, number = received.message, received.message.timestamp
        if message.kind == Kind.CONTRIBUTION:
            self._rendezvous.arrive(received, number, now)
            self._end_if_complete()
        elif number > self._rendezvous.number:
            self._rendezvous.end(number, message)

    def deadline(self) -> float:
        """Time at which the current collective reaches its time limit."""
        return self._rendezvous.deadline()

    def tick(self, now: float) -> None:
        """Send the list of missing ranks if the time limit has passed."""
        if self._rendezvous.deadline() <= now:
            waiting = f"in collective {self._rendezvous.latest} of all ranks"
            self._rendezvous.report_missing(self._live, waiting, now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Stop waiting for a rank. Its contribution still counts if it has been received."""
        self._live.discard(rank)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        arrived, number = self._rendezvous.arrived, self._rendezvous.latest
        if arrived and not self._rendezvous.missing(self._live):
            contributions = {
                rank: arrival.request.message
                for rank, arrival in arrived.items()
                if arrival.number == number
            }
            self._rendezvous.end(number, write_result(number, contributions))


class WaitingRanks:
    """Ranks that wait in a collective, as known to one server.

    Collectives have equal numbers on all ranks. A rank that waits in a collective sends WAITING.
    There is no message for the end of a collective. Instead, every push contains the number of the
    last collective that has ended for its sender, and a rank that waits in the next one has left
    the previous one. Only the largest numbers count, so late, repeated and reordered messages have
    no effect.
    """

    def __init__(self) -> None:
        """Start before the first collective, whose number is 1."""
        self._waits_in: dict[int, int] = {}
        self._done = 0

    def note(self, received: Received) -> None:
        """Read the number of a collective from a message."""
        message, rank = received.message, received.sender
        done = message.facts.get("collectives_done")
        if type(done) is int:
            self._done = max(self._done, done)
        if message.kind == Kind.WAITING:
            self._waits_in[rank] = max(self._waits_in.get(rank, 0), message.timestamp)
            self._done = max(self._done, message.timestamp - 1)

    def ranks(self) -> set[int]:
        """Ranks that wait in a collective."""
        return {rank for rank, number in self._waits_in.items() if number > self._done}


def write_result(number: int, contributions: Mapping[int, Message]) -> Message:
    """All contributions to a collective as one message, in order of rank."""
    messages = dict(sorted(contributions.items()))
    facts = {
        "ranks": list(messages),
        "values": [message.facts["value"] for message in messages.values()],
        "counts": [message.payload.numel() for message in messages.values()],
    }
    payload = torch.cat([message.payload for message in messages.values()])
    return Message(Kind.RESULT, 0, number, facts, payload)


def read_result(message: Message) -> dict[int, Contribution]:
    """The contributions by rank."""
    facts = message.facts
    payloads = message.payload.split(facts["counts"])
    contributions = map(Contribution, facts["values"], payloads)
    return dict(zip(facts["ranks"], contributions, strict=True))
