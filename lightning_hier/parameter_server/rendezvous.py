"""Whom a server waits for: all live ranks at a rendezvous, and no rank that waits elsewhere."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from lightning_hier.parameter_server.message import Kind, Message, missing_report
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server_loop import Replies, send_again


class Arrival(NamedTuple):
    """The request of a rank that waits at a rendezvous, and the number of the rendezvous."""

    number: int
    request: Received


class Rendezvous:
    """Numbered rendezvous at one server: all live ranks arrive, and all get the same answer.

    A shard of PSP-SGD, the master of two-stage ASGD and the leader of live-rank collectives use it.
    Ranks repeat their requests until they are answered, so the last answer is kept.

    Args:
        replies: port of the rank.
        live: live ranks. The owner updates this set.
        limit_s: seconds after which waiting ranks get the list of missing ranks.

    Attributes:
        number: number of the last rendezvous that has ended, or 0.
        arrived: ranks that wait.

    """

    def __init__(self, replies: Replies, live: Set[int], limit_s: float) -> None:
        self._replies = replies
        self._live = live
        self._limit_s = limit_s
        self._since = 0.0
        self._answer: Message | None = None
        self._unconfirmed: set[int] = set()
        self.number = 0
        self.arrived: dict[int, Arrival] = {}

    def arrive(self, request: Received, number: int, now: float) -> bool:
        """Record an arrival, or repeat the answer and return False if the rendezvous has ended."""
        if number <= self.number:
            if self._answer is not None:
                send_again(self._replies, request.address, self._answer)
            return False
        # The limit starts with the first rank that waits, and repeated requests do not extend it.
        if not self.arrived:
            self._since = now
        self.arrived[request.sender] = Arrival(number, request)
        return True

    @property
    def latest(self) -> int:
        """Number of the latest rendezvous at which a rank has arrived."""
        return max((arrival.number for arrival in self.arrived.values()), default=self.number)

    @property
    def is_complete(self) -> bool:
        """Whether all live ranks have arrived at the latest rendezvous."""
        return bool(self.arrived) and not self._missing()

    def _missing(self) -> Set[int]:
        # A rank that waits at an earlier rendezvous needs that answer before it can arrive.
        latest = self.latest
        return self._live - {
            rank for rank, arrival in self.arrived.items() if arrival.number == latest
        }

    def end(self, number: int, answer: Message) -> None:
        """End a rendezvous and all earlier ones, and send the answer to the ranks that wait."""
        self.number, self._answer = number, answer
        # Not only the ranks that wait: after a takeover, others still send their requests here.
        self._unconfirmed = set(self._live)
        ended = [rank for rank, arrival in sorted(self.arrived.items()) if arrival.number <= number]
        for rank in ended:
            # A lost answer is sent again when its rank repeats the request.
            self._replies.send(self.arrived.pop(rank).request.address, answer)

    def leave(self, rank: int) -> None:
        """Stop waiting for a rank that is gone."""
        self.arrived.pop(rank, None)
        self.confirm(rank)

    def confirm(self, rank: int) -> None:
        """Free the answer, which may be as large as the model, when all live ranks have it."""
        self._unconfirmed.discard(rank)
        if not self._unconfirmed:
            self._answer = None

    def report_missing(self, waiting: str, now: float) -> None:
        """At the limit, send the missing ranks and the purpose of the wait to the waiting ranks.

        Args:
            waiting: purpose of the wait, in which ``{number}`` stands for the latest rendezvous.
            now: the time, in seconds.

        """
        if now < self._since + self._limit_s:
            return
        missing, waiting = self._missing(), waiting.format(number=self.latest)
        for _, request in self.arrived.values():
            message = request.message
            report = missing_report(message.block, message.timestamp, missing, waiting)
            self._replies.send(request.address, report)
        self._since = now


class WaitingRanks:
    """Ranks that wait in a live-rank collective, as known to one server.

    Such a rank does not push until all ranks have reached the collective. Ranks that have not
    reached it may need the answer of a server first, so servers do not wait for waiting ranks.

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
        # One number for all ranks: a collective that has ended for one has been reached by all.
        self._done = max(self._done, message.facts.get("collectives_done", 0))
        if message.kind == Kind.WAITING:
            self._waits_in[rank] = max(self._waits_in.get(rank, 0), message.timestamp)
            self._done = max(self._done, message.timestamp - 1)

    def ranks(self) -> set[int]:
        """Ranks that wait in a collective."""
        return {rank for rank, number in self._waits_in.items() if number > self._done}
