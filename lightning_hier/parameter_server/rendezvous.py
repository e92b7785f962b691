"""Whom a server waits for: all ranks at a rendezvous, and no rank that waits in a collective."""

from __future__ import annotations

from collections.abc import Collection, Set

from lightning_hier.comm.progress_record import PeerError, named_ranks
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server_loop import Replies


def waited_too_long(waiting: str, missing: Collection[int]) -> PeerError:
    """Error of a server that cannot answer within the time limit.

    Args:
        waiting: purpose of the wait, such as "for gradients".
        missing: ranks that the server waits for.

    """
    named = named_ranks(sorted(missing))
    return PeerError(
        f"a server has waited too long {waiting}, for {named}: see the log of {named}; increase "
        "the timeout if ranks are only slow"
    )


class Rendezvous:
    """Rendezvous at one server, one after the other: all ranks arrive, and get the same answer.

    A shard of PSP-SGD and the master of two-stage ASGD use it.

    Args:
        replies: port of the rank.
        ranks: ranks that arrive.
        limit_s: time limit of a wait for the last rank, in seconds.

    Attributes:
        arrived: requests of the ranks that wait, by rank.

    """

    def __init__(self, replies: Replies, ranks: Collection[int], limit_s: float) -> None:
        self._replies = replies
        self._ranks = frozenset(ranks)
        self._limit_s = limit_s
        self._since = 0.0
        self.arrived: dict[int, Received] = {}

    def arrive(self, request: Received, now: float) -> None:
        """Record an arrival."""
        # The limit starts with the first rank that waits.
        if not self.arrived:
            self._since = now
        self.arrived[request.sender] = request

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have arrived."""
        # At the same one: no rank arrives at the next rendezvous before this one has ended.
        return self.arrived.keys() == self._ranks

    def end(self, answer: Message) -> None:
        """End the rendezvous, and send the answer to all ranks."""
        for _, request in sorted(self.arrived.items()):
            self._replies.send(request.address, answer)
        self.arrived.clear()

    def check_limit(self, waiting: str, now: float) -> None:
        """Check the time limit.

        Args:
            waiting: purpose of the wait.
            now: the time, in seconds.

        Raises:
            PeerError: a rank has waited too long. The error names the missing ranks.

        """
        if self.arrived and now >= self._since + self._limit_s:
            raise waited_too_long(waiting, self._ranks - self.arrived.keys())


class WaitingRanks:
    """Ranks that wait in a collective of all ranks, as known to one server.

    Such a rank does not push until all ranks have reached the collective. Ranks that have not
    reached it may need the answer of a server first, so servers do not wait for waiting ranks.

    Collectives have equal numbers on all ranks. A rank that enters a collective sends WAITING.
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

    def ranks(self) -> Set[int]:
        """Ranks that wait in a collective."""
        return {rank for rank, number in self._waits_in.items() if number > self._done}
