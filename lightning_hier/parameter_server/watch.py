"""Detection of lost ranks, by connections that carry only heartbeats and reports of failures.

On a connection with payloads heartbeats would be queued behind them, and a peer behind a slow link
would seem to be dead. ZeroMQ's threads answer heartbeats, so a rank that computes does too.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Mapping

import zmq

from lightning_hier.comm.progress_record import PeerError, named_ranks
from lightning_hier.parameter_server.transport import Context, Unconnected

_EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Watch:
    """Detects that other ranks are lost.

    A rank is lost when its connection breaks, because it does not answer heartbeats, and its host
    either refuses new connections, which means that the process has ended, or does not answer for
    ``silent_limit_s``. A rank that is only stopped is not lost, because its host still accepts
    connections. A pause between calls of :meth:`poll` counts as at most half a heartbeat, so that a
    rank that was itself stopped does not regard all others as lost.

    Args:
        context: context of the sockets.
        sockets: one for each other rank, with heartbeats; the watch connects and owns them.
        heartbeat_s: seconds between two heartbeats.
        silent_limit_s: seconds after which a rank is lost if its host does not answer.

    """

    def __init__(
        self,
        context: Context,
        sockets: Mapping[int, Unconnected],
        *,
        heartbeat_s: float,
        silent_limit_s: float,
    ) -> None:
        self._heartbeat_s = heartbeat_s
        self._silent_limit_s = silent_limit_s
        self._polled_at: float | None = None
        self._peers = {
            rank: _Peer(context, rank, socket, heartbeat_s) for rank, socket in sockets.items()
        }

    def poll(self) -> None:
        """Check all ranks, without waiting. Always from one thread, several times a second.

        Raises:
            PeerError: ranks are lost. The error names them.

        """
        now = time.monotonic()
        elapsed_s = 0.0 if self._polled_at is None else now - self._polled_at
        self._polled_at = now
        # At most half a heartbeat, because this process itself may have been stopped since. Its
        # connections broke meanwhile, and need time to return.
        elapsed_s = min(elapsed_s, self._heartbeat_s / 2)
        lost: dict[int, str] = {}
        for rank, peer in self._peers.items():
            if peer.has_ended(elapsed_s):
                lost[rank] = f"its process has ended, {peer.place} refuses connections to it"
            elif peer.silent_s > self._silent_limit_s:
                lost[rank] = f"{peer.place} has not answered for {self._silent_limit_s:g} s"
        if lost:
            reasons = "; ".join(f"rank {rank} is lost: {reason}" for rank, reason in lost.items())
            raise PeerError(
                f"{reasons}. See the log of {named_ranks(list(lost))}, and restart from the last "
                "checkpoint"
            )

    def close(self) -> None:
        """Close all sockets. After the thread that polls has ended."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


class _Peer:
    """The watched connection with one rank.

    Attributes:
        place: host of the rank, for errors.
        broken_s: seconds for which the process has not been connected.
        silent_s: seconds for which its host has not answered.

    """

    def __init__(
        self, context: Context, rank: int, unconnected: Unconnected, heartbeat_s: float
    ) -> None:
        self._socket = unconnected.socket
        self._events = context.socket(zmq.PAIR)
        self._events.linger = 0
        endpoint = f"inproc://watch-{rank}"
        # Monitored before it connects, so that no handshake is missed.
        self._socket.monitor(endpoint, _EVENTS)
        self._events.connect(endpoint)
        unconnected.connect()
        self._family, self._address = _split(unconnected.endpoint)
        self.place = f"host {self._address[0]}" if self._family != socket.AF_UNIX else "this host"
        self._probe: socket.socket | None = None
        self._interval_s = heartbeat_s
        self._probe_due_s = heartbeat_s  # in terms of broken_s
        self._accepted = False  # by the kernel of the peer's host; the process may be stopped
        self._connected = False  # and the process of the peer has completed the handshake
        self.broken_s = self.silent_s = 0.0

    def has_ended(self, elapsed_s: float) -> bool:
        """Note the events of ``elapsed_s`` seconds. Whether the process of the rank has ended."""
        while self._events.poll(0):
            number, _ = struct.unpack("=HI", self._events.recv_multipart()[0])
            self._accepted = number != zmq.EVENT_DISCONNECTED
            self._connected = number == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.broken_s = 0.0 if self._connected else self.broken_s + elapsed_s
        self.silent_s = 0.0 if self._accepted else self.silent_s + elapsed_s
        if self._accepted:
            self._end_probe()
            self._probe_due_s = self.broken_s + self._interval_s
            return False
        # Not at once: ZeroMQ reconnects, usually before that.
        return self.broken_s > self._probe_due_s and self._is_refused()

    def _is_refused(self) -> bool:
        """Whether the host refuses connections, which ZeroMQ does not report.

        It is asked once a heartbeat, because a stopped process keeps every accepted connection.
        """
        if self._probe is None:
            # Kept between calls, because a host may answer later than the next poll.
            self._probe = socket.socket(self._family, socket.SOCK_STREAM)
            self._probe.setblocking(False)
        outcome = self._probe.connect_ex(self._address)
        if outcome in (errno.EINPROGRESS, errno.EALREADY):
            return False
        if outcome in (0, errno.EISCONN, errno.EAGAIN):  # EAGAIN: too many wait to be accepted
            self.silent_s = 0.0
        self._end_probe()
        self._probe_due_s = self.broken_s + self._interval_s
        return outcome == errno.ECONNREFUSED

    def close(self) -> None:
        """Close the sockets; the monitor first, without which a context never ends."""
        self._end_probe()
        self._socket.disable_monitor()
        self._events.close()
        self._socket.close()

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
