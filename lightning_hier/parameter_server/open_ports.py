"""Opening and closing of all ports of a rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from lightning_hier.comm.addresses import Offer, make_offer
from lightning_hier.comm.traffic import Tier, Traffic
from lightning_hier.parameter_server.authentication import Contact, Refused, Register
from lightning_hier.parameter_server.ports import ClientPort, PortContext, ServerPort
from lightning_hier.parameter_server.transport import Socket, Transport
from lightning_hier.parameter_server.watch import Watch

_WATCH_NAME = "watch"
_CONNECT_LIMIT_S = 60.0
# The third event, a refused key, is counted where it is refused.
_FAILED_HANDSHAKES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

AllGather = Callable[[Any], list[Any]]
"""All-gather of values that JSON can represent, in order of rank."""


class Ports:
    """Connections of a rank outside the process group.

    A port belongs to one thread at a time. Created by :func:`open_ports`.

    Attributes:
        server: server port of this rank.
        clients: ports to all servers by name.
        alarm: port to all other ranks, on the connections of the watch. Only the server loop uses
            it.

    """

    def __init__(
        self,
        transport: Transport,
        register: Register,
        context: PortContext,
        *,
        clients: Sequence[str],
        silent_limit_s: float,
    ) -> None:
        self._transport = transport
        self._register = register
        self._context = context
        self._silent_limit_s = silent_limit_s
        self._closed = False
        self._handshakes = transport.server.get_monitor_socket(_FAILED_HANDSHAKES)
        self._monitors: dict[Socket, int] = {}
        others = [contact for contact in register.contacts if contact.rank != register.rank]
        self.alarm = self._connect(_WATCH_NAME, others)  # a rank does not lose itself
        self.clients = {name: self._connect(name, register.contacts) for name in clients}
        self.server = ServerPort(transport.server, register, context)
        self._watch = Watch(self._monitors, self._ended)

    def wait_until_connected(self) -> None:
        """Wait until this rank is connected with all others. Raises OSError."""
        self._watch.wait_until_connected(_CONNECT_LIMIT_S)

    def check(self) -> None:
        """Raise PeerError if ranks are lost. Only the server loop may call it, and regularly."""
        self._watch.poll()
        # One at a time, so that a flood of them does not occupy the server loop.
        if self._handshakes.poll(0):
            failed = parse_monitor_message(self._handshakes.recv_multipart())
            peer, detail = f"a peer of {failed['endpoint'].decode()}", f"event {failed['event']}"
            self._context.refusals.add(Refused("handshake", peer, detail))

    def refusals(self) -> dict[str, int]:
        """Number of refused connections and messages, by reason. Thread-safe."""
        return self._context.refusals.counts()

    def close(self) -> None:
        """Close all ports. Queued messages are sent for up to a second.

        A second call does nothing. The threads that use the ports must have ended. To the watches
        of other ranks, a rank that has closed its ports is lost.
        """
        if not self._closed:
            self._closed = True
            self._transport.close()

    def _connect(self, name: str, contacts: Sequence[Contact]) -> ClientPort:
        sockets = {}
        for contact in contacts:
            socket, monitor = self._transport.connect(
                self._register, contact, name, self._silent_limit_s
            )
            sockets[contact.rank] = socket
            if monitor is not None:
                self._monitors[monitor] = contact.rank
        return ClientPort(sockets, self._context)

    def _ended(self, rank: int) -> str:
        if self._register.is_near(rank):
            return "its process has ended"
        host = str(self._register.contacts[rank].tcp).removeprefix("tcp://").rpartition(":")[0]
        limit_s = self._silent_limit_s
        return f"its process has ended, or host {host} has not answered for {limit_s:g} s"


def open_ports(
    rank: int,
    world_size: int,
    exchange: AllGather,
    *,
    traffic: Traffic,
    tier_of: Callable[[int], Tier],
    clients: Sequence[str] = ("main",),
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
        clients: name of each client port of this rank, one for each thread that sends requests.
        silent_limit_s: seconds after which a rank is lost if its host does not answer.

    Raises:
        RuntimeError: on every rank, if a rank cannot be reached by the others.

    """
    context = PortContext(rank, traffic, tier_of)
    failure = "a port could not be opened"
    offers = [Offer(**offer) for offer in exchange(asdict(make_offer(os.environ)))]
    with ExitStack() as undo:
        transport = Transport(world_size, context.refusals)
        undo.callback(transport.close)
        # All addresses are bound before a rank connects, and their names are removed as soon as all
        # ranks have connected.
        rows = agree(exchange, lambda: asdict(transport.bind(rank, offers)), failure)
        register = Register(rank, [Contact(**row) for row in rows])
        # Ranks of other hosts that have connected already wait for this.
        transport.authenticator.admit(register.ranks_by_key)
        ports = Ports(transport, register, context, clients=clients, silent_limit_s=silent_limit_s)
        agree(exchange, ports.wait_until_connected, failure)
        transport.remove_name()
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
