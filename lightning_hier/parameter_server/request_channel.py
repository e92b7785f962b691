"""Request channel of a thread: requests to servers, their answers, and waits with a limit.

Workers and nodes use it. It repeats requests until they are acknowledged, calls handlers of
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
        port: port that only this thread uses.
        server_loop: server loop of this rank; its failure is raised in every wait.
        timeout_s: time limit of a wait, in seconds.
        on_waited: function that is called with the seconds of every wait.

    Attributes:
        send, send_to_all: as of :class:`ClientPort <.ports.ClientPort>`, for messages without an
            answer.
        is_sending: :meth:`ClientPort.is_sending <.ports.ClientPort.is_sending>`.
        fail: ends the run by an error of this thread.
        now: returns the time in seconds.
        requests: requests of this channel.
        collectives_done: number of the last collective of all ranks that has ended for this rank.
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
        self.send_to_all = port.send_to_all
        self.is_sending = port.is_sending
        self.fail = server_loop.fail
        self.now = time.monotonic
        self.collectives_done = 0
        self.requests: list[Request] = []
        self._port = port
        self._server_loop = server_loop
        self._timeout_s = timeout_s
        self._on_waited = on_waited
        self._handlers: dict[Kind, Callable[[Received, float], None]] = {}

    def on_port(self, port: ClientPort) -> RequestChannel:
        """Create a channel for another thread of this rank, with its own port."""
        return RequestChannel(port, self._server_loop, timeout_s=self._timeout_s)

    def on(self, kind: Kind, handler: Callable[[Received, float], None]) -> None:
        """Make :meth:`poll` call ``handler(received, now)`` with every message of a kind."""
        self._handlers[kind] = handler

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Handle a message that arrives within ``timeout_s`` seconds. Returns whether one arrived.

        If there is none, requests that are due are sent.

        Raises:
            PeerError: a rank is lost, or a request has reached its limit.
            Exception: that of the server loop of this rank, if it has failed.

        """
        # The servers of this rank stop with the loop, and the other ranks would wait for them.
        self._server_loop.check()
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
            PeerError: the limit has passed, or as in :meth:`poll`.

        """
        begun = time.monotonic()
        limit = self._timeout_s if limit_s is None else limit_s
        with profiler_range("hier/wait"):
            # First handle the messages that arrived during the computation.
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
