"""Request channel of a thread: requests to servers, their answers, and waits with a limit.

Workers, nodes and live-rank collectives use it. It repeats requests until they are acknowledged,
sends requests of a lost server to its successor, calls handlers of received messages, and raises an
error that names the missing ranks when a limit has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError, named_ranks
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import ClientPort, Received
from lightning_hier.parameter_server.requests import Request
from lightning_hier.parameter_server.server_loop import ServerLoop

# The condition of a wait may depend on the time, or on the state of the server loop.
_LONGEST_POLL_S = 0.02


class RequestChannel:
    """Sends requests for one thread, calls handlers of received messages, and waits.

    Args:
        port: port that only this thread uses.
        server_loop: server loop of this rank; its failure is raised in every wait.
        timeout_s: time limit of a wait, in seconds.
        on_waited: function that is called with the seconds of every wait.

    Attributes:
        send: :meth:`ClientPort.send <.ports.ClientPort.send>`, for messages without an answer.
        is_sending: :meth:`ClientPort.is_sending <.ports.ClientPort.is_sending>`.
        gone: returns the ranks that are lost or have left.
        lost: returns the lost ranks, with reasons.
        now: returns the time in seconds.
        known_gone: lost or left ranks whose requests have been moved.
        requests: requests of this channel.
        collectives_done: number of the last live-rank collective that has ended for this rank.
            Every push contains it.

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
        self.now = time.monotonic
        self.known_gone: set[int] = set()
        self.collectives_done = 0
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
        """Create a channel for another thread of this rank, with its own port."""
        return RequestChannel(port, self._server_loop, timeout_s=self._timeout_s)

    def on(self, kind: Kind, handler: Callable[[Received, float], None]) -> None:
        """Make :meth:`poll` call ``handler(received, now)`` with every message of a kind."""
        self._handlers[kind] = handler

    def on_gone(self, handler: Callable[[int, float], None]) -> None:
        """Make :meth:`poll` call ``handler(rank, now)`` once for every rank that is gone."""
        self._gone_handlers.append(handler)

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Handle a message that arrives within ``timeout_s`` seconds. Returns whether one arrived.

        If there is none, requests that are due are sent.

        Raises:
            PeerError: a request has reached its limit, a server reports missing ranks, a server is
                lost without a successor, or the other ranks have excluded this rank.
            RuntimeError: the server loop of this rank has failed.

        """
        # The servers of this rank stop with the loop, and the other ranks would wait for them.
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
        """Handle messages until ``done(now)``, and return the elapsed seconds.

        Args:
            done: condition, called with the time after every message and 50 times per second.
            missing: returns the error text with the purpose of the wait and the missing ranks.
            limit_s: time limit in seconds. None: that of this channel.

        Raises:
            PeerError: the limit has passed.
            RuntimeError: as in :meth:`poll`.

        """
        begun = time.monotonic()
        limit = self._timeout_s if limit_s is None else limit_s
        with profiler_range("hier/wait"):
            # First handle lost ranks, and messages that arrived during the computation.
            while self.poll() and time.monotonic() - begun < limit:
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
        # Before the handlers, which may raise, because a checkpoint after the error needs the new
        # servers.
        for request in self.requests:
            request.move(now)
        for handle_gone in self._gone_handlers:
            handle_gone(rank, now)

    def _raise_missing(self, received: Received, now: float) -> None:
        report = received.message
        # A report about a request that has been answered since is outdated.
        for request in self.requests:
            message = request.message
            if message is not None and (request.rank, message.block, message.timestamp) == (
                (received.sender, report.block, report.timestamp)
            ):
                named = named_ranks(report.facts.get("missing", ()))
                raise PeerError(
                    f"rank {received.sender} has waited too long {report.facts.get('waiting')}, "
                    f"for {named}: see the log of {named}; increase the timeout if ranks are only "
                    "slow"
                )


def _raise_expelled(received: Received, now: float) -> None:
    reason = received.message.facts.get("reason", "it was silent")
    raise PeerError(
        f"the other ranks continue without this one: rank {received.sender} had lost it "
        f"({reason}). A rank that is unreachable for grace_s cannot rejoin. Check its host and "
        "network, or set grace_s above the duration of such interruptions."
    )
