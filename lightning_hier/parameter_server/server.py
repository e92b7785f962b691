"""Servers of shards in the server loop of a rank: rendezvous, waiting ranks, and dispatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Set

from lightning_hier.comm.progress_record import PeerError, named_ranks
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received, ServerPort
from lightning_hier.parameter_server.served_values import ServedValues, write_state
from lightning_hier.parameter_server.shards import Shard


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


class WaitingRanks:
    """Ranks that wait in a collective of all ranks, as known to the servers of one rank.

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


class ShardServer(ABC):
    """A server of one shard.

    It takes pushes of its clients, and has one rendezvous of them after the other: all arrive, and
    get the same values. It does no I/O except sending, and receives the time as an argument, so
    that tests can call it message by message.

    Args:
        shard: shard on this rank.
        values: values of the shard and their Updater.
        clients: ranks that push.
        replies: port of the rank.
        limit_s: time limit of a wait for clients, in seconds.

    Attributes:
        shard, values: see above.
        timestamp: version of the values.

    """

    def __init__(
        self,
        shard: Shard,
        values: ServedValues,
        clients: Collection[int],
        replies: ServerPort,
        limit_s: float,
    ) -> None:
        self.shard = shard
        self.values = values
        self.timestamp = 0
        self._clients = frozenset(clients)
        self._replies = replies
        self._limit_s = limit_s
        self._arrived: dict[int, Received] = {}
        self._arrived_since = 0.0

    @abstractmethod
    def push(self, received: Received, now: float) -> None:
        """Handle a PUSH or an ABSTAIN. ``now`` is ``time.monotonic()`` in seconds."""

    @abstractmethod
    def advance(self, now: float) -> None:
        """Do what need not wait for a client any more. Called when one waits elsewhere."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Do the work that is due, such as unsent replies. Called regularly.

        Raises:
            PeerError: a client has waited too long for others.

        """

    def arrive(self, received: Received, now: float) -> None:
        """Record the arrival of a client at the rendezvous. It does not push until all have."""
        # The limit starts with the first client that waits.
        if not self._arrived:
            self._arrived_since = now
        self._arrived[received.sender] = received
        self.advance(now)

    @property
    def _all_arrived(self) -> bool:
        # At the same rendezvous: nobody arrives at the next one before this one has ended.
        return self._arrived.keys() == self._clients

    def _end_rendezvous(self) -> None:
        """Send the current values to all clients."""
        final = self._values_as(Kind.FINAL)
        for _, request in sorted(self._arrived.items()):
            self._replies.send(request.address, final)
        self._arrived.clear()

    def _check_rendezvous(self, waiting: str, now: float) -> None:
        """Raise PeerError if a client has waited too long at the rendezvous, for ``waiting``."""
        if self._arrived and now >= self._arrived_since + self._limit_s:
            raise waited_too_long(waiting, self._clients - self._arrived.keys())

    def _values_as(self, kind: Kind, **facts: int) -> Message:
        """The current values as a message."""
        return Message(kind, self.shard.number, self.timestamp, facts, self.values.flat())


class Servers:
    """The servers of a rank. Its server loop passes them all messages.

    Args:
        of_shard: server of each shard, by its number. None on a rank that serves none.
        replies: port of the rank.
        waiting_ranks: ranks that wait in a collective, which the servers read.

    Attributes:
        of_shard: see above.

    """

    def __init__(
        self, of_shard: Mapping[int, ShardServer], replies: ServerPort, waiting_ranks: WaitingRanks
    ) -> None:
        self.of_shard = dict(of_shard)
        self._replies = replies
        self._waiting_ranks = waiting_ranks

    def handle(self, received: Received, now: float) -> None:
        """Handle a message. ``now`` is ``time.monotonic()`` in seconds."""
        self._waiting_ranks.note(received)
        message = received.message
        if message.kind == Kind.WAITING:
            for server in self.of_shard.values():
                server.advance(now)
        elif message.kind in (Kind.PUSH, Kind.ABSTAIN):
            self.of_shard[message.block].push(received, now)
        elif message.kind == Kind.ARRIVE:
            self.of_shard[message.block].arrive(received, now)
        elif message.kind == Kind.STATE_REQUEST:
            state = write_state(self.of_shard[message.block].values, message)
            self._replies.send(received.address, state)

    def tick(self, now: float) -> None:
        """Let all servers do the work that is due, as :meth:`ShardServer.tick` says."""
        for server in self.of_shard.values():
            server.tick(now)
