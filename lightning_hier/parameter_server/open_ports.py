"""Opening and closing of all ports of a rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import zmq

from lightning_hier.comm.addresses import Offer, make_offer
from lightning_hier.comm.traffic import Tier, Traffic
from lightning_hier.parameter_server.authentication import Contact, Register
from lightning_hier.parameter_server.connection import BufferPool, ConnectionContext
from lightning_hier.parameter_server.message import Limits
from lightning_hier.parameter_server.ports import ClientPort, ServerPort
from lightning_hier.parameter_server.refusals import Refusals
from lightning_hier.parameter_server.transport import Transport
from lightning_hier.parameter_server.watch import Watch

_WATCH_NAME = "watch"

AllGather = Callable[[Any], list[Any]]
"""All-gather of values that JSON can represent, in order of rank."""


class Ports:
    """Connections of a rank outside the process group.

    A port belongs to one thread at a time. Created by :func:`open_ports`.

    Attributes:
        server: server port of this rank.
        watch: detects lost ranks. Only the server loop uses it.
        alarm: port to all other ranks, on the connections of the watch. Only the server loop uses
            it.

    """

    def __init__(
        self,
        transport: Transport,
        register: Register,
        context: ConnectionContext,
        *,
        heartbeat_s: float,
        silent_limit_s: float,
    ) -> None:
        self._transport = transport
        self._register = register
        self._context = context
        self._clients: dict[str, ClientPort] = {}
        self._closed = False
        watched = {
            contact.rank: transport.client_socket(register, contact, _WATCH_NAME, heartbeat_s)
            for contact in register.contacts
            if contact.rank != register.rank  # a rank does not lose itself
        }
        self.watch = Watch(
            transport.context, watched, heartbeat_s=heartbeat_s, silent_limit_s=silent_limit_s
        )
        self.alarm = ClientPort({rank: peer.socket for rank, peer in watched.items()}, context)
        self.server = ServerPort(transport.server, register, context)

    def open_client(self, name: str) -> ClientPort:
        """Open a port to all servers for the calling thread.

        Args:
            name: name that is unique among this rank's clients, of letters and digits.

        Raises:
            ValueError: the name is taken.

        """
        if name in (_WATCH_NAME, *self._clients):
            raise ValueError(f"the name of a client must be unique, got {name!r}, which is open")
        sockets = {
            contact.rank: self._transport.client_socket(self._register, contact, name).connect()
            for contact in self._register.contacts
        }
        self._clients[name] = ClientPort(sockets, self._context)
        return self._clients[name]

    def refusals(self) -> dict[str, int]:
        """Number of refused connections and messages, by reason. Thread-safe."""
        return self._context.refusals.counts()

    def close(self) -> None:
        """Close all ports. Queued messages are sent for up to a second.

        A second call does nothing. The threads that use the ports must have ended. To the watches
        of other ranks, a rank that has closed its ports is lost.
        """
        if self._closed:
            return
        self._closed = True
        # The transport last, because its context does not end before all sockets are closed.
        for client in self._clients.values():
            client.close()
        self.watch.close()
        self._transport.close()


def open_ports(
    rank: int,
    world_size: int,
    exchange: AllGather,
    *,
    traffic: Traffic,
    tier_of: Callable[[int], Tier],
    limits: Limits | None = None,
    heartbeat_s: float = 1.0,
    silent_limit_s: float = 30.0,
) -> Ports:
    """Bind this rank's server and connect to the others. Every rank must call it.

    Ranks of one host are connected by Unix sockets, others by TCP with CURVE.

    Args:
        rank: rank of this process.
        world_size: number of ranks.
        exchange: all-gather of values that JSON can represent, in order of rank.
        traffic: counts sent messages.
        tier_of: returns the tier of messages to a rank.
        limits: limits of messages; the same on all ranks.
        heartbeat_s: seconds between two heartbeats.
        silent_limit_s: seconds after which a rank is lost if its host does not answer.

    Raises:
        RuntimeError: on every rank, if a rank cannot be reached by the others.

    """
    limits = limits or Limits()
    memory = BufferPool(limits.queued_bytes)
    context = ConnectionContext(rank, limits, Refusals(), traffic, tier_of, memory)
    failure = "a port could not be opened"
    offers = [Offer(**offer) for offer in exchange(asdict(make_offer(os.environ)))]
    with ExitStack() as undo:
        transport = Transport(world_size, limits, context.refusals)
        undo.callback(transport.close)
        # All addresses are bound before a rank connects, and their names are removed as soon as all
        # ranks of the host have opened them.
        rows = agree(exchange, lambda: asdict(transport.bind(rank, offers)), failure)
        contacts = [Contact(**row) for row in rows]
        opened: list[Contact] = []
        host = contacts[rank].host
        agree(exchange, lambda: opened.extend(transport.open_sockets(host, contacts)), failure)
        transport.remove_name()
        register = Register(rank, opened)
        # Ranks of other hosts that have connected already wait for this.
        transport.authenticator.admit(register.ranks_by_key)
        ports = Ports(
            transport, register, context, heartbeat_s=heartbeat_s, silent_limit_s=silent_limit_s
        )
        undo.pop_all()
    return ports


def agree(exchange: AllGather, act: Callable[[], Any], failure: str) -> list[Any]:
    """Results of ``act`` on all ranks. An error on a rank is raised on all, so that none waits.

    Args:
        exchange: all-gather over the world.
        act: function that returns a value that JSON can represent, or raises ``OSError`` or
            ``zmq.ZMQError``.
        failure: first part of the error message.

    Raises:
        RuntimeError: ``act`` failed on a rank. The error names the ranks and their errors.

    """
    # Each rank must take part in the exchange, also if it has failed.
    try:
        row = {"result": act()}
    except (OSError, zmq.ZMQError) as error:
        row = {"problem": str(error)}
    rows = exchange(row)
    problems = [
        f"rank {rank}: {row['problem']}" for rank, row in enumerate(rows) if "problem" in row
    ]
    if problems:
        raise RuntimeError(f"{failure}: {'; '.join(problems)}")
    return [row["result"] for row in rows]
