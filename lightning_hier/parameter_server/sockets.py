"""The sockets of the transport: which options they need, and why."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import zmq

from lightning_hier.parameter_server.authentication import (
    ZAP_DOMAIN,
    Contact,
    Credentials,
    Register,
    routing_id,
)
from lightning_hier.parameter_server.message import Limits
from lightning_hier.parameter_server.wire import MOST_PARTS, PART_BYTES, bytes_of_part

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

OWN_ENDPOINT = "inproc://server"
LINGER_MS = 1000
_LEAST_PARTS = 16
_SLACK_BYTES = 1024  # what CURVE adds to a frame
_RECONNECT_MS = (50, 1000)
_CONNECT_LIMIT_MS = 2000
# A way that has been silent for so long is taken for gone and is built again.
_SILENT_LIMIT_S = 30


class Unconnected(NamedTuple):
    """A socket of a client before its first attempt to connect: time to attach a monitor.

    Attributes:
        socket: with all its options.
        endpoint: where it is to connect.

    """

    socket: Socket
    endpoint: str

    def connect(self) -> Socket:
        """Begin to connect, and go on whenever the connection breaks."""
        self.socket.connect(self.endpoint)
        return self.socket


def make_context(world_size: int) -> Context:
    """A context of this process; a forked one needs its own."""
    # One thread of ZeroMQ encrypts or decrypts about 1 GB/s; its connections are divided by two.
    context: Context = zmq.Context(io_threads=2)
    # Each rank has a connection and a watched one with its monitor; clients may be several.
    context.max_sockets = 64 + 16 * world_size
    return context


def server_socket(context: Context, limits: Limits) -> Socket:
    """The socket that a rank serves at; it is not bound yet."""
    socket = context.socket(zmq.ROUTER)
    _set_common(socket, limits)
    # Tells of an address that is gone instead of dropping in silence.
    socket.router_mandatory = True
    # A peer that reconnects may come before its old connection is known to be broken. The
    # addresses hold the ranks' tokens, so that nobody else can take one over.
    socket.router_handover = True
    return socket


def bind_inside(socket: Socket, ipc: str | None) -> None:
    """Let in this rank itself and, at ``ipc``, the other ranks of its host.

    To be called before :func:`bind_outside`: what that sets would hold here too.
    """
    socket.bind(OWN_ENDPOINT)
    if ipc is not None:
        socket.bind(ipc)


def bind_outside(socket: Socket, tcp: str, credentials: Credentials) -> str:
    """Let in ranks of other hosts by CURVE; returns the endpoint with the port."""
    socket.ipv6 = tcp.startswith("tcp://[")
    socket.curve_publickey = credentials.public_key.encode()
    socket.curve_secretkey = credentials.secret_key.encode()
    socket.curve_server = True
    socket.zap_domain = ZAP_DOMAIN
    socket.bind(tcp)
    return socket.get_string(zmq.LAST_ENDPOINT)


def client_socket(
    context: Context,
    register: Register,
    credentials: Credentials,
    peer: Contact,
    name: str,
    limits: Limits,
    *,
    heartbeat_s: float | None = None,
) -> Unconnected:
    """A socket that :meth:`Unconnected.connect` connects to the server of ``peer``.

    Args:
        context: of this process.
        register: who is where.
        credentials: of this rank.
        peer: whom to connect to; may be this rank.
        name: of this connection among those of this rank to this peer.
        limits: of what may wait and be received.
        heartbeat_s: time between two heartbeats; None: none are sent.

    """
    socket = context.socket(zmq.DEALER)
    _set_common(socket, limits)
    socket.routing_id = routing_id(register.own, name)
    socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS
    socket.connect_timeout = _CONNECT_LIMIT_MS
    if heartbeat_s is not None:
        socket.heartbeat_ivl = max(1, round(1000 * heartbeat_s))
        socket.heartbeat_timeout = 2 * socket.heartbeat_ivl
    if peer.rank == register.rank:
        endpoint: str | None = OWN_ENDPOINT
    elif register.is_near(peer.rank):
        endpoint = peer.ipc
    else:
        endpoint = peer.tcp
        socket.curve_serverkey = peer.public_key.encode()
        socket.curve_publickey = credentials.public_key.encode()
        socket.curve_secretkey = credentials.secret_key.encode()
        socket.ipv6 = "[" in (endpoint or "")
    if endpoint is None:
        raise ValueError(f"rank {peer.rank} serves at no address that rank {register.rank} reaches")
    return Unconnected(socket, endpoint)


def _set_common(socket: Socket, limits: Limits) -> None:
    socket.linger = LINGER_MS
    # The links limit queues by bytes. ZeroMQ limits them by number, for messages without payload,
    # and must not stop in the middle of the one large message that may always be sent.
    parts = max(limits.queued_bytes // PART_BYTES, MOST_PARTS)
    socket.sndhwm = limits.queued_messages + parts
    # A peer of which so much waits to be read is not heard any more, and its own queue fills.
    socket.rcvhwm = max(_LEAST_PARTS, limits.queued_bytes // PART_BYTES)
    largest = max(bytes_of_part(limits.payload_bytes), limits.facts_bytes)
    socket.maxmsgsize = largest + _SLACK_BYTES
    # Routers between hosts forget a way on which nothing is said, without telling either end.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _SILENT_LIMIT_S
    socket.tcp_maxrt = 1000 * _SILENT_LIMIT_S


def milliseconds_until(deadline_s: float) -> int:
    """Milliseconds for a poll that ends when ``time.monotonic()`` is ``deadline_s``; at least 0."""
    return max(0, math.ceil(1000 * (deadline_s - time.monotonic())))
