"""The ZeroMQ sockets of the transport and their options."""

from __future__ import annotations

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
# A TCP connection is reset when its peer's host has not acknowledged for so long.
_SILENT_LIMIT_S = 30


class Unconnected(NamedTuple):
    """A socket of a client before its first attempt to connect: time to attach a monitor.

    Attributes:
        socket: socket with all its options.
        endpoint: address of the peer.

    """

    socket: Socket
    endpoint: str

    def connect(self) -> Socket:
        """Connect, and reconnect whenever the connection breaks."""
        self.socket.connect(self.endpoint)
        return self.socket


def make_context(world_size: int) -> Context:
    """A ZeroMQ context for this process; a forked process needs its own."""
    # One thread of ZeroMQ encrypts or decrypts about 1 GB/s; its connections are divided by two.
    context: Context = zmq.Context(io_threads=2)
    # For each rank: a watched connection with its monitor, and one for each client.
    context.max_sockets = 64 + 16 * world_size
    return context


def server_socket(context: Context, limits: Limits) -> Socket:
    """The socket of a server; it is not bound yet."""
    socket = context.socket(zmq.ROUTER)
    _set_common(socket, limits)
    # Raise an error for an address that is gone instead of dropping the message.
    socket.router_mandatory = True
    # A peer may reconnect before its old connection is known to be broken. Addresses include the
    # ranks' tokens, so that only the peer itself can take its address over.
    socket.router_handover = True
    return socket


def bind_inside(socket: Socket, ipc: str | None) -> None:
    """Bind for this rank itself and, at ``ipc``, for the other ranks of its host.

    Call it before :func:`bind_outside`, whose options would hold for these addresses too.
    """
    socket.bind(OWN_ENDPOINT)
    if ipc is not None:
        socket.bind(ipc)


def bind_outside(socket: Socket, tcp: str, credentials: Credentials) -> str:
    """Bind for ranks of other hosts, with CURVE; returns the endpoint with the port."""
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
        context: context of this process.
        register: contacts of all ranks.
        credentials: credentials of this rank.
        peer: rank to connect to; may be this rank.
        name: name of this connection among those of this rank to this peer.
        limits: limits of messages and queues.
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
    # Above this number of unread messages ZeroMQ reads no more, and the peer's queue fills.
    socket.rcvhwm = max(_LEAST_PARTS, limits.queued_bytes // PART_BYTES)
    largest = max(bytes_of_part(limits.payload_bytes), limits.facts_bytes)
    socket.maxmsgsize = largest + _SLACK_BYTES
    # Routers drop idle connections without a notice to either end.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _SILENT_LIMIT_S
    socket.tcp_maxrt = 1000 * _SILENT_LIMIT_S
