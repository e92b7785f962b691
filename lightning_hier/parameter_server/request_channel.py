"""Request channel of a thread: requests to servers, their answers, and waits with a limit.

Workers and nodes use it. It calls handlers of received messages, and raises an error that names the
missing ranks when a limit has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError, named_ranks
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import ClientPort, Received
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
        send, send_to_all: as of :class:`ClientPort <.ports.ClientPort>`, for messages without a
            payload.
        fail: ends the run by an error of this thread.
        collectives_done: number of the last collective of all ranks that has ended for this rank.
            Every push contains it.
        dropped: number of requests with a payload that were replaced before they could be sent.

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
        self.fail = server_loop.fail
        self.collectives_done = 0
        self.dropped = 0
        self._port = port
        self._server_loop = server_loop
        self._timeout_s = timeout_s
        self._on_waited = on_waited
        self._handlers: dict[Kind, Callable[[Received, float], None]] = {}
        self._unsent: dict[tuple[int, int], Message] = {}

    def on_port(self, port: ClientPort) -> RequestChannel:
        """Create a channel for another thread of this rank, with its own port."""
        return RequestChannel(port, self._server_loop, timeout_s=self._timeout_s)

    def on(self, kind: Kind, handler: Callable[[Received, float], None]) -> None:
        """Make :meth:`poll` call ``handler(received, now)`` with every message of a kind."""
        self._handlers[kind] = handler

    def request(self, rank: int, message: Message) -> None:
        """Send a request now, or when a large one to this rank has left the queue.

        The queue to a rank that is stopped or slow therefore does not grow. A request that has not
        been sent is replaced by the next one about the same block.
        """
        replaced = self._unsent.pop((rank, message.block), message)
        self.dropped += replaced is not message and replaced.payload.numel() > 0
        if self._port.is_sending(rank) or not self._port.send(rank, message):
            self._unsent[rank, message.block] = message

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Handle a message that arrives within ``timeout_s`` seconds. Returns whether one arrived.

        Raises:
            Exception: that of the server loop of this rank, if it has failed, such as the PeerError
                of a lost rank.

        """
        # The servers of this rank stop with the loop, and the other ranks would wait for them.
        self._server_loop.check()
        for (rank, _), message in list(self._unsent.items()):
            self.request(rank, message)
        received = self._port.receive(timeout_s)
        if received is None:
            return False
        handler = self._handlers.get(received.message.kind)
        if handler is not None:
            handler(received, time.monotonic())
        return True

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


def unanswered(what: str, ranks: Iterable[int]) -> str:
    """Error text that names the ranks from which ``what`` were not received."""
    named = named_ranks(sorted(set(ranks)))
    return f"{what} were not received from {named}: see the log of {named}"
