"""The request channel of a thread: requests to servers, their answers, and waits with a limit.

Workers, nodes and live-rank collectives all reach servers through it. It repeats requests until
they are acknowledged, sends those of a rank that is gone to the next server, calls handlers of
received messages, and raises an error that names the missing ranks when a limit has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import ClientPort, Received
from lightning_hier.parameter_server.requests import Request
from lightning_hier.parameter_server.server_loop import ServerLoop

# The condition of a wait may depend on the time, or on the state of the server loop.
_LONGEST_POLL_S = 0.02


class RequestChannel:
    """Sends requests for one thread, calls handlers of received messages, and waits.

    Args:
        port: used by this thread only.
        server_loop: server loop of this rank; its failure is raised in every wait.
        timeout_s: limit of a wait, in seconds.
        on_waited: called with the seconds of every wait.

    Attributes:
        send: :meth:`ClientPort.send <.ports.ClientPort.send>`, for messages without an answer.
        is_sending: :meth:`ClientPort.is_sending <.ports.ClientPort.is_sending>`.
        gone: returns the ranks that have been lost or have left.
        lost: returns the ranks that have been lost, and why.
        known_gone: the ranks that are gone and whose requests have been moved.
        requests: that have been made for this channel.

    """

    def __init__(
        self,
        port: ClientPort,
        server_loop: ServerLoop,
        *,
        timeout_s: float,
        on_waited: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.send = port.send
        self.is_sending = port.is_sending
        self.gone = server_loop.gone
        self.lost = server_loop.lost
        self.known_gone: set[int] = set()
        self.requests: list[Request] = []
        self._port = port
        self._server_loop = server_loop
        self._timeout_s = timeout_s
        self._on_waited = on_waited
        self._handlers: dict[Kind, Callable[[Received, float], None]] = {
            Kind.EXPELLED: _raise_expelled,
            Kind.MISSING: self._raise_missing,
        }
        self._gone_handlers: list[Callable[[int, float], None]] = []

    def on_port(self, port: ClientPort) -> RequestChannel:
        """A channel for another thread of this rank, with a port of its own."""
        return RequestChannel(port, self._server_loop, timeout_s=self._timeout_s)

    def on(self, kind: Kind, handler: Callable[[Received, float], None]) -> None:
        """Have :meth:`poll` call ``handler(received, now)`` with every message of a kind."""
        self._handlers[kind] = handler

    def on_gone(self, handler: Callable[[int, float], None]) -> None:
        """Have :meth:`poll` call ``handler(rank, now)`` once for every rank that is gone."""
        self._gone_handlers.append(handler)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Handle one message if there is one within ``timeout_s`` seconds; return whether.

        Without one, requests that are due are sent.

        Raises:
            PeerError: a request has reached its limit, or its server reports missing ranks; a
                server is gone that no other replaces; the other ranks have given up this rank.
            RuntimeError: the server loop of this rank has failed.

        """
        self._server_loop.check()
        for rank in sorted(self.gone() - self.known_gone):
            self._note_gone(rank, time.monotonic())
        received = self._port.receive(timeout_s)
        if received is None:
            self.tick(time.monotonic())
            return False
        handler = self._handlers.get(received.message.kind)
        if handler is not None:
            handler(received, time.monotonic())
        return True

    def tick(self, now: float) -> None:
        """Send unsent requests, and repeat those whose answers are late."""
        for request in self.requests:
            request.tick(now)

    def wait(
        self,
        done: Callable[[float], bool],
        missing: Callable[[], str],
        *,
        limit_s: float | None = None,
    ) -> float:
        """Handle messages until ``done(now)``, and return the seconds that this took.

        Args:
            done: called with the time after every message, and 50 times a second.
            missing: returns the text of the error: the object of the wait and the missing ranks.
            limit_s: in seconds; None: that of this channel.

        Raises:
            PeerError: the limit has passed.
            RuntimeError: as :meth:`poll`.

        """
        begun = time.monotonic()
        limit = self._timeout_s if limit_s is None else limit_s
        with profiler_range("hier/wait"):
            # Lost ranks, and messages that arrived during the computation, come first.
            while self.poll():
                pass
            while not done(time.monotonic()):
                left = begun + limit - time.monotonic()
                if left <= 0:
                    raise PeerError(f"after {limit:g} s: {missing()}")
                self.poll(min(_LONGEST_POLL_S, left))
        waited_s = time.monotonic() - begun
        self._on_waited(waited_s)
        return waited_s

    def _note_gone(self, rank: int, now: float) -> None:
        self.known_gone.add(rank)
        # First, since a handler may raise: a checkpoint after the error needs the new servers.
        for request in self.requests:
            request.move(now)
        for handle_gone in self._gone_handlers:
            handle_gone(rank, now)

    def _raise_missing(self, received: Received, now: float) -> None:
        report = received.message
        for one in self.requests:
            asked = one.message
            if asked is not None and (one.rank, asked.block, asked.timestamp) == (
                (received.sender, report.block, report.timestamp)
            ):
                named = ", ".join(map(str, report.facts.get("missing", ())))
                raise PeerError(
                    f"rank {received.sender} has waited too long {report.facts.get('waiting')}, "
                    f"for rank {named}: look at the log of rank {named}; ranks that are slow but "
                    "healthy need a larger timeout"
                )


def _raise_expelled(received: Received, now: float) -> None:
    reason = received.message.facts.get("reason", "it was silent")
    raise PeerError(
        f"the other ranks go on without this one: rank {received.sender} had lost it ({reason}). "
        "A rank that cannot be reached for grace_s can't come back. Look at its host and network, "
        "and set grace_s to more than such interruptions take."
    )
