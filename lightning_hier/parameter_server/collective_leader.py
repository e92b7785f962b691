"""Leader of collectives of the live ranks, and ranks that wait in a collective.

The lowest live rank is the leader. It collects the contributions and sends the result to all ranks.
If it is lost, the next rank becomes the leader. Ranks that already have the result forward it to
the new leader, so that all ranks get the same result.

A rank that waits in a collective does not push until all ranks have reached it. Ranks that have not
reached it may need the answer of a server first. A server therefore does not wait for waiting
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.message import Kind, Message, missing_report
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server_loop import Replies, send_again

# Results that a leader keeps, because ranks are at most one collective apart.
_KEPT = 2


@dataclass(frozen=True)
class Contribution:
    """Data of a rank: a value that JSON can represent, and an optional tensor."""

    value: Any
    payload: Tensor | None


@dataclass
class _Collective:
    """A collective that has not ended."""

    contributions: dict[int, Contribution] = field(default_factory=dict)
    addresses: dict[int, bytes] = field(default_factory=dict)
    due: float = 0.0


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
        self._replies = replies
        self._limit_s = limit_s
        self._open: dict[int, _Collective] = {}
        self._results: dict[int, Message] = {}

    def handle(self, received: Received, now: float) -> None:
        """Store a contribution, or a result of a lost leader."""
        message, number = received.message, received.message.timestamp
        if message.kind == Kind.RESULT:
            self._end(number, copy_message(message))
            return
        if number in self._results:
            send_again(self._replies, received.address, self._results[number])
            return
        collective = self._open.setdefault(number, _Collective(due=now + self._limit_s))
        if received.sender not in collective.contributions:
            payload = None if message.payload is None else message.payload.clone()
            contribution = Contribution(message.facts.get("value"), payload)
            collective.contributions[received.sender] = contribution
        collective.addresses[received.sender] = received.address
        self._end_complete()

    def deadline(self) -> float:
        """Time at which the first collective reaches its time limit."""
        # Collectives reach their limits in the order of their start.
        return next(iter(self._open.values())).due if self._open else math.inf

    def tick(self, now: float) -> None:
        """Send the list of missing ranks of collectives that have reached the time limit."""
        for number, one in list(self._open.items()):
            if one.due <= now:
                missing = self._live - one.contributions.keys()
                waiting = f"in collective {number} of all ranks"
                self._end(number, missing_report(0, number, missing, waiting))

    def peer_gone(self, rank: int, now: float) -> None:
        """Stop waiting for a rank. Its contribution still counts if it has been received."""
        self._live.discard(rank)
        self._end_complete()

    def _end_complete(self) -> None:
        for number, one in list(self._open.items()):
            if self._live <= one.contributions.keys():
                self._end(number, write_result(number, one.contributions))

    def _end(self, number: int, result: Message) -> None:
        self._results[number] = result
        for old in sorted(self._results)[:-_KEPT]:
            del self._results[old]
        ended = self._open.pop(number, _Collective())
        for address in ended.addresses.values():
            # Not repeated: a rank that does not get the result repeats its contribution.
            self._replies.send(address, result)


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
        if not self._waits_in:
            return set()
        return {rank for rank, number in self._waits_in.items() if number > self._done}


def write_result(number: int, contributions: Mapping[int, Contribution]) -> Message:
    """All contributions to a collective as one message, in order of rank."""
    ranks = sorted(contributions)
    payloads = [contributions[rank].payload for rank in ranks]
    tensors = [payload for payload in payloads if payload is not None]
    facts = {
        "ranks": ranks,
        "values": [contributions[rank].value for rank in ranks],
        "counts": [None if payload is None else payload.numel() for payload in payloads],
    }
    return Message(Kind.RESULT, 0, number, facts, torch.cat(tensors) if tensors else None)


def read_result(message: Message) -> dict[int, Contribution]:
    """The contributions by rank."""
    facts = message.facts
    contributions, first = {}, 0
    for rank, value, count in zip(facts["ranks"], facts["values"], facts["counts"], strict=True):
        payload = None
        if count is not None and message.payload is not None:
            payload = message.payload[first : first + count]
            first += count
        contributions[int(rank)] = Contribution(value, payload)
    return contributions


def copy_message(message: Message) -> Message:
    """Copy a message with its payload. A received payload is a view of a frame."""
    payload = None if message.payload is None else message.payload.clone()
    return Message(message.kind, message.block, message.timestamp, message.facts, payload)
