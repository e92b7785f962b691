"""Detection of lost ranks, by connections that carry only heartbeats.

On a connection with payloads heartbeats would be queued behind them, and a peer behind a slow link
would seem to be dead. ZeroMQ's threads answer heartbeats, so a rank that computes does too.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Mapping

import zmq

from lightning_hier.parameter_server.transport import Context, Unconnected

_EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED

# In a flood of messages, one is always unread. Connections are read in turn, so the BYE of a rank
# that has left is read within so many heartbeats.
_FLOODED_HEARTBEATS = 10

_ENDED = "its process has ended: connections to it are refused"


class Watch:
    """The ranks that have been lost, and those that have left. They do not return.

    A rank is lost when its connection breaks, because it has died or does not answer heartbeats,
    and either its host refuses new connections, which means that the process has ended, or it has
    not reconnected within ``grace_s``. A pause between calls of :meth:`poll` counts as at most
    half a heartbeat, so that a rank that was itself stopped does not regard all others as dead.

    Args:
        context: context of the sockets.
        sockets: one for each other rank, with heartbeats; the watch connects and owns them.
        heartbeat_s: seconds between two heartbeats.
        grace_s: seconds for which a rank may be unreachable while its process has not ended.

    """

    def __init__(
        self,
        context: Context,
        sockets: Mapping[int, Unconnected],
        *,
        heartbeat_s: float,
        grace_s: float,
    ) -> None:
        self._heartbeat_s = heartbeat_s
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._lost: dict[int, str] = {}
        self._left: set[int] = set()
        self._polled_at: float | None = None
        self._peers = {rank: _Peer(context, rank, socket) for rank, socket in sockets.items()}

    def lost(self) -> dict[int, str]:
        """Lost ranks, with reasons. Thread-safe."""
        with self._lock:
            return dict(self._lost)

    def left(self) -> set[int]:
        """Ranks that have left. Thread-safe."""
        with self._lock:
            return set(self._left)

    def gone(self) -> set[int]:
        """Ranks that are lost or have left. Thread-safe."""
        with self._lock:
            return self._left | self._lost.keys()

    def note_left(self, rank: int) -> None:
        """Record that a rank has left. From the thread that polls."""
        if rank not in self._peers:  # lost before, left before, or this rank itself
            return
        self._peers.pop(rank).close()
        with self._lock:
            self._left.add(rank)

    def poll(self, *, unread: bool = False) -> None:
        """Update the state, without waiting. Always from one thread, several times a second.

        Args:
            unread: whether there may be unread messages. One of them may be the BYE of a rank whose
                process has ended since, so it counts as lost some heartbeats later.

        """
        now = time.monotonic()
        elapsed_s = 0.0 if self._polled_at is None else now - self._polled_at
        self._polled_at = now
        for rank, peer in list(self._peers.items()):
            # At most half a heartbeat, because this process itself may have been stopped since. Its
            # connections broke meanwhile, and need time to return even if grace_s is a heartbeat.
            peer.note_events(min(elapsed_s, self._heartbeat_s / 2))
            # Not at once: ZeroMQ reconnects, usually before that.
            wait_s = self._heartbeat_s * (_FLOODED_HEARTBEATS if unread else 1)
            ended = peer.unreachable_s > wait_s and peer.has_ended()
            if ended or peer.unreachable_s > self._grace_s:
                reason = _ENDED if ended else peer.reason(self._grace_s)
                self._peers.pop(rank).close()
                with self._lock:
                    self._lost[rank] = reason

    def close(self) -> None:
        """Close all sockets. After the thread that polls has ended."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


class _Peer:
    """The watched connection with one rank."""

    def __init__(self, context: Context, rank: int, unconnected: Unconnected) -> None:
        self._socket = unconnected.socket
        self._events = context.socket(zmq.PAIR)
        self._events.linger = 0
        endpoint = f"inproc://watch-{rank}"
        # Monitored before it connects, so that no handshake is missed.
        self._socket.monitor(endpoint, _EVENTS)
        self._events.connect(endpoint)
        unconnected.connect()
        self._endpoint = unconnected.endpoint
        self._probe: socket.socket | None = None
        self._reached = False  # the kernel of the peer's host has accepted the connection
        self._connected = False  # and the process of the peer has completed the handshake
        self._was_connected = False
        self.unreachable_s = 0.0

    def note_events(self, elapsed_s: float) -> None:
        """Update the state; ``elapsed_s``: seconds since the last call."""
        while self._events.poll(0):
            number, _ = struct.unpack("=HI", self._events.recv_multipart()[0])
            self._reached = number != zmq.EVENT_DISCONNECTED
            self._connected = number == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._was_connected |= self._connected
        self.unreachable_s = 0.0 if self._connected else self.unreachable_s + elapsed_s

    def has_ended(self) -> bool:
        """Whether the host of the rank has refused a connection to its address.

        ZeroMQ does not distinguish refused connections from unanswered ones.
        """
        if self._reached:  # by ZeroMQ: the process exists, but is stopped
            self._end_probe()
            return False
        family, address = _split(self._endpoint)
        if self._probe is None:
            # Kept between calls, because a host may answer later than the next poll.
            self._probe = socket.socket(family, socket.SOCK_STREAM)
            self._probe.setblocking(False)
        outcome = self._probe.connect_ex(address)
        if outcome not in (errno.EINPROGRESS, errno.EALREADY):
            self._end_probe()
        return outcome == errno.ECONNREFUSED

    def reason(self, grace_s: float) -> str:
        """Why a rank that was unreachable for too long is lost."""
        if self._was_connected:
            return f"its connection broke and has not come back for grace_s={grace_s:g} s"
        return f"it could not be reached for grace_s={grace_s:g} s after the start"

    def close(self) -> None:
        """Close the sockets; the monitor first, without which a context never ends."""
        self._end_probe()
        self._socket.disable_monitor()
        self._events.close()
        self._socket.close(linger=0)

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None


def _split(endpoint: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """Family and address of an endpoint of ZeroMQ for a socket of the kernel."""
    transport, _, address = endpoint.partition("://")
    if transport == "ipc":
        return socket.AF_UNIX, address
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    return family, (host.strip("[]"), int(port))
