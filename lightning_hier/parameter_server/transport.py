"""Transport of a rank: ZeroMQ context, bound socket, and connected sockets.

A Unix socket has a name in the file system. A killed process would leave it behind, and another
process with access to the directory could bind its own socket to it. Names therefore exist only
during the start, until all ranks are connected. No connection is made afterwards: one that breaks
is not made again, and its rank is lost. So no message is lost unless a rank is.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Sequence

import zmq

from lightning_hier.comm.addresses import Offer, job_address, tcp_endpoint
from lightning_hier.parameter_server.authentication import (
    Authenticator,
    Contact,
    Credentials,
    Refusals,
    Register,
    routing_id,
)

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

_OWN_ENDPOINT = "inproc://server"
_LINGER_MS = 1000
# Longer than the linger time, during which a context with queued messages does not end.
_END_LIMIT_S = _LINGER_MS / 1000 + 4.0
_BACKLOG = 4096
# Parts of messages (256 MiB). Above this number of unread ones of a peer, ZeroMQ stops reading, and
# the peer's queue fills.
_UNREAD_PARTS = 128
_HANDSHAKE_LIMIT_MS = 60_000
_FOLDER_PREFIX = "lightning_hier-"
# With the name of the socket; the limit of the address of a Unix socket is 107.
_LONGEST_FOLDER = 100

_log = logging.getLogger(__name__)


class Transport:
    """The resources that are opened first and closed last.

    Attributes:
        context: context of all sockets of these ports.
        credentials: credentials of this rank.
        authenticator: authenticator of peers on other hosts.
        server: socket to bind.

    """

    def __init__(self, world_size: int, refusals: Refusals) -> None:
        # Two threads, because one encrypts or decrypts about 1 GB/s.
        self.context: Context = zmq.Context(io_threads=2)
        # For each rank: the connections of the watch and of each client, with their monitors.
        self.context.max_sockets = 64 + 16 * world_size
        self.credentials = Credentials.make()
        self.authenticator = Authenticator(self.context, refusals)
        self.server = self._socket(zmq.ROUTER)
        # Raise an error for an unknown address instead of dropping the message silently.
        self.server.router_mandatory = True
        self.server.backlog = _BACKLOG
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def bind(self, rank: int, offers: Sequence[Offer]) -> Contact:
        """Bind the addresses that other ranks need, and no others.

        Raises:
            OSError: there is no directory or no address to bind to.
            zmq.ZMQError: binding failed.

        """
        host = offers[rank].host
        hosts = [offer.host for offer in offers]
        ipc = tcp = None
        # Before the options of CURVE, which would also apply to these addresses.
        self.server.bind(_OWN_ENDPOINT)
        if hosts.count(host) > 1:
            ipc = f"ipc://{self._make_folder()}/s"
            self.server.bind(ipc)
        if hosts.count(host) < len(hosts):
            tcp = self._bind_outside(tcp_endpoint(job_address(rank, offers)))
        return Contact(rank, host, self.credentials.token, self.credentials.public_key, ipc, tcp)

    def connect(
        self, register: Register, peer: Contact, name: str, silent_limit_s: float
    ) -> tuple[Socket, Socket | None]:
        """Connect to the server of ``peer``.

        Args:
            register: contacts of all ranks.
            peer: rank to connect to; may be this rank.
            name: name of this connection among those of this rank to this peer.
            silent_limit_s: seconds after which an idle connection breaks if the host of the peer
                does not answer.

        Returns:
            The socket, and the monitor of its connection, which this rank itself does not need.

        """
        socket = self._socket(zmq.DEALER)
        socket.routing_id = routing_id(register.own, name)
        socket.reconnect_ivl = -1
        if peer.rank == register.rank:
            socket.connect(_OWN_ENDPOINT)
            return socket, None
        # The kernel of a rank's host answers also while the rank is stopped.
        idle_s, probe_s = max(1, round(silent_limit_s / 2)), max(1, round(silent_limit_s / 10))
        socket.tcp_keepalive = 1
        socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl = idle_s, probe_s
        socket.tcp_keepalive_cnt = max(1, round((silent_limit_s - idle_s) / probe_s))
        endpoint = peer.ipc if register.is_near(peer.rank) else peer.tcp
        if endpoint is None:
            raise ValueError(f"rank {peer.rank} has no address that rank {register.rank} can reach")
        if not register.is_near(peer.rank):
            socket.curve_serverkey = peer.public_key.encode()
            self._identify(socket)
            socket.ipv6 = "[" in endpoint
        # Before it connects, so that no event is missed.
        monitor = socket.get_monitor_socket()
        socket.connect(endpoint)
        return socket, monitor

    def remove_name(self) -> None:
        """Remove the name of this rank's socket after all ranks of its host have connected."""
        if self._folder is not None:
            self._folder.cleanup()

    def close(self) -> None:
        """Close all sockets of the context. Queued messages are sent for up to a second."""
        self.authenticator.close()
        # In a thread with a limit, because ZeroMQ waits without one for what it regards as unsent.
        end = threading.Thread(
            target=self.context.destroy, args=(_LINGER_MS,), name="zmq-end", daemon=True
        )
        end.start()
        end.join(_END_LIMIT_S)
        if end.is_alive():
            _log.warning("ZeroMQ did not end within %g s", _END_LIMIT_S)
        self.remove_name()

    def _socket(self, kind: int) -> Socket:
        socket = self.context.socket(kind)
        socket.linger = _LINGER_MS  # also for a connection that ends before the socket is closed
        socket.rcvhwm = _UNREAD_PARTS
        # Senders limit their queues themselves. ZeroMQ must not refuse a part of a message.
        socket.sndhwm = 0
        # A rank may be stopped for longer than the default.
        socket.handshake_ivl = _HANDSHAKE_LIMIT_MS
        return socket

    def _make_folder(self) -> str:
        """A new directory for the socket, which only this user can access."""
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX)
        if len(self._folder.name) > _LONGEST_FOLDER:
            self._folder.cleanup()
            self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir="/tmp")
        return self._folder.name

    def _bind_outside(self, endpoint: str) -> str:
        """Bind for ranks of other hosts, with CURVE. Returns the endpoint with the port."""
        self.server.ipv6 = endpoint.startswith("tcp://[")
        self._identify(self.server)
        self.server.curve_server = True
        self.server.bind(endpoint)
        return self.server.get_string(zmq.LAST_ENDPOINT)

    def _identify(self, socket: Socket) -> None:
        socket.curve_publickey = self.credentials.public_key.encode()
        socket.curve_secretkey = self.credentials.secret_key.encode()
