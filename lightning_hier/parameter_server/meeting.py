"""Meetings: every rank that is still there says something, and all hear the same of everybody.

What barriers, broadcasts and sums of a strategy are made of where a collective of the process
group would wait for ever for a rank that has died. The lowest rank that is there leads: it collects
what the ranks say and sends the minutes to all. A rank that hears nothing says its word again: a
connection that breaks and comes back loses what was on it. If the lead dies, the next one leads.
A rank that has the minutes already hands them to the new lead, so that all ranks go by the same.

Servers must not wait for those who wait here (see :mod:`.attendance`): whoever waits for more than
a moment has them told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.patience import Patience
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.replies import Replies

# Meetings of which a lead keeps the minutes: ranks are at most one meeting apart.
_KEPT = 2
# Most meetings are over by then, and servers need not hear of them.
_TELL_AFTER_S = 0.1


@dataclass(frozen=True)
class Word:
    """What one rank said: anything that JSON can say, and perhaps numbers."""

    facts: Any
    payload: Tensor | None


@dataclass
class _Agenda:
    """One meeting that a lead collects for."""

    words: dict[int, Word] = field(default_factory=dict)
    addresses: dict[int, bytes] = field(default_factory=dict)
    due: float = 0.0


class MeetingDuty:
    """Leads meetings, on the rank that has to.

    Args:
        world_size: number of ranks.
        replies: port of the rank.
        limit_s: after so many seconds those who have come are told who is missing.

    """

    kinds = frozenset({Kind.MEET, Kind.MINUTES})

    def __init__(self, world_size: int, replies: Replies, *, limit_s: float) -> None:
        self._present = set(range(world_size))
        self._replies = replies
        self._limit_s = limit_s
        self._open: dict[int, _Agenda] = {}
        self._minutes: dict[int, Message] = {}

    def handle(self, received: Received, now: float) -> None:
        """Take a rank's word, or the minutes of a meeting that a lost lead has closed."""
        message, number = received.message, received.message.timestamp
        if message.kind == Kind.MINUTES:
            self._close(number, _copied(message))
            return
        if number in self._minutes:
            if not self._replies.is_sending(received.address, Kind.MINUTES, message.block):
                self._replies.send(received.address, self._minutes[number])
            return
        agenda = self._open.setdefault(number, _Agenda(due=now + self._limit_s))
        if received.sender not in agenda.words:
            payload = None if message.payload is None else message.payload.clone()
            agenda.words[received.sender] = Word(message.facts.get("value"), payload)
        agenda.addresses[received.sender] = received.address
        self._close_complete()

    def deadline(self) -> float | None:
        """When the first meeting has waited too long."""
        return min((agenda.due for agenda in self._open.values()), default=None)

    def tick(self, now: float) -> None:
        """Tell those who have come who is missing, where they have waited too long."""
        for number, agenda in list(self._open.items()):
            if agenda.due <= now:
                missing = sorted(self._present - agenda.words.keys())
                self._close(number, Message(Kind.MINUTES, 0, number, {"missing": missing}))

    def peer_gone(self, rank: int, now: float) -> None:
        """Wait for it no longer; what it has said still counts."""
        self._present.discard(rank)
        self._close_complete()

    def _close_complete(self) -> None:
        for number, agenda in list(self._open.items()):
            if self._present <= agenda.words.keys():
                self._close(number, write_minutes(number, agenda.words))

    def _close(self, number: int, minutes: Message) -> None:
        self._minutes[number] = minutes
        for old in sorted(self._minutes)[:-_KEPT]:
            del self._minutes[old]
        agenda = self._open.pop(number, _Agenda())
        for address in agenda.addresses.values():
            # Minutes that are not taken, or are lost, are asked for again.
            self._replies.send(address, minutes)


def write_minutes(number: int, words: Mapping[int, Word]) -> Message:
    """All words of a meeting as one message, in order of rank."""
    ranks = sorted(words)
    payloads = [words[rank].payload for rank in ranks]
    spoken = [payload for payload in payloads if payload is not None]
    facts = {
        "ranks": ranks,
        "values": [words[rank].facts for rank in ranks],
        "counts": [None if payload is None else payload.numel() for payload in payloads],
    }
    return Message(Kind.MINUTES, 0, number, facts, torch.cat(spoken) if spoken else None)


def read_minutes(message: Message) -> dict[int, Word]:
    """What each rank said.

    Raises:
        PeerError: the meeting was given up, and who is missing.

    """
    facts = message.facts
    if "missing" in facts:
        named = ", ".join(map(str, facts["missing"]))
        raise PeerError(
            f"meeting {message.timestamp} of all ranks waited too long for rank {named}: look at "
            f"the log of rank {named}; ranks that are slow but healthy need a larger timeout"
        )
    words, first = {}, 0
    for rank, value, count in zip(facts["ranks"], facts["values"], facts["counts"], strict=True):
        payload = None
        if count is not None and message.payload is not None:
            payload = message.payload[first : first + count]
            first += count
        words[int(rank)] = Word(value, payload)
    return words


class Meetings:
    """The meetings that a rank attends, from its main thread.

    Args:
        world_size: number of ranks at the start.
        client: of the main thread.
        ask_again_s: after so many seconds of silence at least a word is said again.
        on_waiting: gets the number of a meeting that keeps this rank waiting; again after each
            such time, since what it sends may be lost.
        on_over: gets the number of a meeting that is over.

    """

    def __init__(
        self,
        world_size: int,
        client: Client,
        *,
        ask_again_s: float = 5.0,
        on_waiting: Callable[[int], None] = lambda number: None,
        on_over: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._world_size = world_size
        self._client = client
        self._ask_again_s = ask_again_s
        self._on_waiting = on_waiting
        self._on_over = on_over
        self._tell_at = 0.0
        self._number = 0
        self._waiting: Message | None = None
        self._patience = Patience(ask_again_s)
        self._latest: Message | None = None
        client.on(Kind.MINUTES, self._take_minutes)
        client.on_gone(self._meet_new_lead)

    def meet(self, value: Any = None, payload: Tensor | None = None) -> dict[int, Word]:
        """Say something and hear everybody. Every rank that is there must call it.

        Args:
            value: anything that JSON can say.
            payload: a 1-D tensor on the host, of any length; one dtype on all ranks.

        Raises:
            PeerError: somebody did not come within the time limit; names who.

        """
        self._number += 1
        facts = {"value": value}
        self._waiting = Message(Kind.MEET, 0, self._number, facts, payload)
        now = time.monotonic()
        self._patience.begin(now)
        self._tell_at = now + _TELL_AFTER_S
        self._client.send(self._lead(), self._waiting)
        self._client.wait(
            self._has_minutes,
            lambda: f"rank {self._lead()} leads meeting {self._number} and has sent no minutes",
        )
        if self._latest is None:
            raise RuntimeError("a meeting has ended without minutes")
        words = read_minutes(self._latest)
        self._on_over(self._number)
        return words

    def _has_minutes(self) -> bool:
        if self._waiting is None:
            return True
        now = time.monotonic()
        if self._patience.asks_again(now):
            lead = self._lead()
            if not self._client.is_sending(lead, Kind.MEET, 0):
                self._client.send(lead, self._waiting)
        if now >= self._tell_at:
            self._tell_at = now + self._ask_again_s
            self._on_waiting(self._number)
        return False

    def _lead(self) -> int:
        return min(set(range(self._world_size)) - self._client.gone())

    def _take_minutes(self, received: Received) -> None:
        if received.message.timestamp == self._number and self._waiting is not None:
            self._latest, self._waiting = _copied(received.message), None

    def _meet_new_lead(self, gone: int) -> None:
        if gone > self._lead():
            return
        if self._latest is not None:
            self._client.send(self._lead(), self._latest)
        if self._waiting is not None:
            self._client.send(self._lead(), self._waiting)


def _copied(message: Message) -> Message:
    # What arrived is a view of a frame that may be sent on and outlive it.
    payload = None if message.payload is None else message.payload.clone()
    return Message(message.kind, message.block, message.timestamp, message.facts, payload)
