"""Transport of a rank: ZeroMQ context, bound socket, and sockets of its host.

A Unix socket has a name in the file system. A killed process would leave it behind, and another
process with access to the directory could bind its own socket to it. Names therefore exist only
during the start: every rank of the host opens the sockets of the others (``O_PATH``), and then all
names are removed. A rank connects and reconnects through ``/proc/self/fd``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import NamedTuple

import zmq

from lightning_hier.comm.addresses import Offer, job_address, tcp_endpoint
from lightning_hier.parameter_server.authentication import (
    ZAP_DOMAIN,
    Authenticator,
    Contact,
    Credentials,
    Register,
    routing_id,
)
from lightning_hier.parameter_server.message import Limits
from lightning_hier.parameter_server.refusals import Refusals
from lightning_hier.parameter_server.wire import MOST_PARTS, PART_BYTES, bytes_of_part

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

_OWN_ENDPOINT = "inproc://server"
_LINGER_MS = 1000
_LEAST_PARTS = 16
_BACKLOG = 4096
_SLACK_BYTES = 1024  # overhead of CURVE per frame
_RECONNECT_MS = (50, 1000)
_CONNECT_LIMIT_MS = 2000
# Time without acknowledgement after which a TCP connection is reset.
_SILENT_LIMIT_S = 30
_FOLDER_PREFIX = "lightning_hier-"
_SOCKET_NAME = "server"
# Longer than the linger time, during which a context with queued messages does not end.
_END_LIMIT_S = _LINGER_MS / 1000 + 4.0

_log = logging.getLogger(__name__)


class Unconnected(NamedTuple):
    """A client socket before it connects, so that a monitor can be attached.

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
    """Create a ZeroMQ context for this process. A forked process needs its own."""
    # Two threads, because one encrypts or decrypts about 1 GB/s.
    context: Context = zmq.Context(io_threads=2)
    # For each rank: a watched connection with its monitor, and one connection per client.
    context.max_sockets = 64 + 16 * world_size
    return context


def server_socket(context: Context, limits: Limits) -> Socket:
    """Create the socket of a server, which is not bound yet."""
    socket = context.socket(zmq.ROUTER)
    _set_common(socket, limits)
    # Raise an error for an unknown address instead of dropping the message silently.
    socket.router_mandatory = True
    # While a rank is stopped, the watches of all others reconnect, and the kernel queues them.
    socket.backlog = _BACKLOG
    # A peer may reconnect before its old connection is known to be broken. Addresses include the
    # tokens of ranks, so only the peer itself can take over its address.
    socket.router_handover = True
    return socket


def _set_common(socket: Socket, limits: Limits) -> None:
    socket.linger = _LINGER_MS
    # Connections limit queues by bytes. ZeroMQ limits them by number, for messages without payload.
    # It must not stop within a single large message, which may always be sent.
    parts = max(limits.queued_bytes // PART_BYTES, MOST_PARTS)
    socket.sndhwm = limits.queued_messages + parts
    # Above this number of unread messages, ZeroMQ stops reading, and the peer's queue fills.
    socket.rcvhwm = max(_LEAST_PARTS, limits.queued_bytes // PART_BYTES)
    largest = max(bytes_of_part(limits.payload_bytes), limits.facts_bytes)
    socket.maxmsgsize = largest + _SLACK_BYTES
    # Keep-alive, because routers drop idle connections without notifying either end.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _SILENT_LIMIT_S
    socket.tcp_maxrt = 1000 * _SILENT_LIMIT_S


class Transport:
    """The resources that are opened first and closed last.

    Attributes:
        context: context of all sockets of these ports.
        credentials: credentials of this rank.
        authenticator: authenticator of peers on other hosts.
        server: socket to bind.

    """

    def __init__(self, world_size: int, limits: Limits, refusals: Refusals) -> None:
        self._limits = limits
        self.context = make_context(world_size)
        self.credentials = Credentials.make()
        self.authenticator = Authenticator(self.context, refusals)
        self.server = server_socket(self.context, limits)
        self.authenticator.start(self.server)
        self._folder: TemporaryDirectory[str] | None = None
        self._handles: list[int] = []

    def bind(self, rank: int, offers: Sequence[Offer]) -> Contact:
        """Bind the addresses that other ranks need, and no others.

        Raises:
            OSError: there is no directory or no address to bind to.
            zmq.ZMQError: binding failed.

        """
        host = offers[rank].host
        hosts = [offer.host for offer in offers]
        ipc = tcp = None
        if hosts.count(host) > 1:
            # Only this user can access it.
            self._folder = TemporaryDirectory(prefix=_FOLDER_PREFIX)
            # Through a handle, because a path may exceed the 107 bytes of a socket address.
            ipc = f"{self._open(self._folder.name)}/{_SOCKET_NAME}"
        # Before the options below, which would also apply to these addresses.
        self.server.bind(_OWN_ENDPOINT)
        if ipc is not None:
            self.server.bind(ipc)
        if hosts.count(host) < len(hosts):
            tcp = self._bind_outside(tcp_endpoint(job_address(rank, offers)))
        path = None if self._folder is None else f"{self._folder.name}/{_SOCKET_NAME}"
        return Contact(rank, host, self.credentials.token, self.credentials.public_key, path, tcp)

    def client_socket(
        self, register: Register, peer: Contact, name: str, heartbeat_s: float | None = None
    ) -> Unconnected:
        """Create a socket that :meth:`Unconnected.connect` connects to the server of ``peer``.

        Args:
            register: contacts of all ranks.
            peer: rank to connect to; may be this rank.
            name: name of this connection among those of this rank to this peer.
            heartbeat_s: seconds between two heartbeats. None: no heartbeats.

        """
        socket = self.context.socket(zmq.DEALER)
        _set_common(socket, self._limits)
        socket.routing_id = routing_id(register.own, name)
        socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS
        socket.connect_timeout = _CONNECT_LIMIT_MS
        if heartbeat_s is not None:
            socket.heartbeat_ivl = max(1, round(1000 * heartbeat_s))
            # docs/faults.md: a host without power is unreachable after two heartbeats.
            socket.heartbeat_timeout = 2 * socket.heartbeat_ivl
        if peer.rank == register.rank:
            endpoint: str | None = _OWN_ENDPOINT
        elif register.is_near(peer.rank):
            endpoint = peer.ipc
        else:
            endpoint = peer.tcp
            socket.curve_serverkey = peer.public_key.encode()
            self._identify(socket)
            socket.ipv6 = "[" in (endpoint or "")
        if endpoint is None:
            raise ValueError(f"rank {peer.rank} has no address that rank {register.rank} can reach")
        return Unconnected(socket, endpoint)

    def open_sockets(self, host: str, contacts: Sequence[Contact]) -> list[Contact]:
        """Contacts with endpoints that remain valid after the names of the sockets are removed.

        Raises:
            OSError: a socket cannot be opened.

        """
        return [
            replace(contact, ipc=self._open(contact.ipc))
            if contact.host == host and contact.ipc is not None
            else contact
            for contact in contacts
        ]

    def remove_name(self) -> None:
        """Remove the name of this rank's socket after all ranks of its host have opened it."""
        if self._folder is not None:
            self._folder.cleanup()

    def close(self) -> None:
        """Terminate the context after all other sockets have been closed."""
        # The monitor first: its socket would keep the context from ending.
        self.server.disable_monitor()
        self.server.close()
        # In a thread, because term() would block forever if a socket were not closed.
        end = threading.Thread(target=self.context.term, name="zmq-end", daemon=True)
        end.start()
        end.join(_END_LIMIT_S)
        self.remove_name()
        if end.is_alive():  # the context may still connect through the handles
            _log.warning("ZeroMQ did not end within %g s: a port is still open", _END_LIMIT_S)
            return
        while self._handles:
            os.close(self._handles.pop())

    def _bind_outside(self, endpoint: str) -> str:
        """Bind for ranks of other hosts, with CURVE. Returns the endpoint with the port."""
        self.server.ipv6 = endpoint.startswith("tcp://[")
        self._identify(self.server)
        self.server.curve_server = True
        self.server.zap_domain = ZAP_DOMAIN
        self.server.bind(endpoint)
        return self.server.get_string(zmq.LAST_ENDPOINT)

    def _identify(self, socket: Socket) -> None:
        socket.curve_publickey = self.credentials.public_key.encode()
        socket.curve_secretkey = self.credentials.secret_key.encode()

    def _open(self, path: str) -> str:
        """Endpoint of the open socket at ``path``, which is valid after its name is removed."""
        self._handles.append(os.open(path, os.O_PATH | os.O_CLOEXEC))
        return f"ipc:///proc/self/fd/{self._handles[-1]}"
