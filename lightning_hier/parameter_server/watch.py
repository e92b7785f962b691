"""Detection of lost ranks by the ends of their connections.

The kernel of a rank's host ends its connections when the process ends, and answers for it while it
is only stopped or computes. A host that is gone does not answer, and after a limit the kernel of
this host ends the connection (TCP's keep-alive). It does so only for idle connections, so the watch
has its own, on which only reports of failures are sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import zmq
from zmq.utils.monitor import parse_monitor_message

from lightning_hier.comm.progress_record import PeerError, named_ranks
from lightning_hier.parameter_server.transport import Socket

_ENDS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
# A rank that fails reports its error before its connections end.
_REPORT_S = 1.0


class Watch:
    """Detects the loss of other ranks by monitors of the connections with them.

    Args:
        monitors: monitor of each connection, and the rank of its peer.
        place: returns what has ended if a rank is lost, for errors.

    """

    def __init__(self, monitors: Mapping[Socket, int], place: Callable[[int], str]) -> None:
        self._monitors = dict(monitors)
        self._place = place
        self._poller = zmq.Poller()
        for monitor in self._monitors:
            self._poller.register(monitor, zmq.POLLIN)
        self._connecting = set(self._monitors)
        self._ended_at: dict[int, float] = {}

    def wait_until_connected(self, limit_s: float) -> None:
        """Wait until all connections have been made.

        Raises:
            OSError: a connection could not be made in ``limit_s`` seconds. The error names the
                ranks.

        """
        until = time.monotonic() + limit_s
        while self._connecting and not self._ended_at and time.monotonic() < until:
            self._read(timeout_ms=100)
        late = {self._monitors[monitor] for monitor in self._connecting}
        if late:
            raise OSError(f"no connection with {named_ranks(sorted(self._ended_at or late))}")

    def poll(self) -> None:
        """Check all ranks, without waiting. Always from one thread, several times a second.

        Raises:
            PeerError: ranks are lost. The error names them.

        """
        self._read(timeout_ms=0)
        now = time.monotonic()
        lost = [rank for rank, at in sorted(self._ended_at.items()) if now >= at + _REPORT_S]
        if lost:
            reasons = "; ".join(f"rank {rank} is lost: {self._place(rank)}" for rank in lost)
            raise PeerError(
                f"{reasons}. See the log of {named_ranks(lost)}, and restart from the last "
                "checkpoint"
            )

    def _read(self, timeout_ms: int) -> None:
        for monitor, _ in self._poller.poll(timeout_ms):
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connecting.discard(monitor)
            elif event & _ENDS:
                self._ended_at.setdefault(self._monitors[monitor], time.monotonic())
