"""Background threads, and the server loop in which a rank serves the others."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

import torch
from typing_extensions import override

from lightning_hier.comm.gloo_connections import close_connections
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.open_ports import Ports
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server import Servers

# Intervals of the work that does not depend on messages. Users set time-outs of servers (tau_1) to
# some tens of milliseconds.
_TICK_S = 0.01
_WATCH_S = 0.02
_END_LIMIT_S = 10.0
_NOTICE_S = 1.0
_LONGEST_TEXT = 10_000


class BackgroundThread(ABC):
    """Calls :meth:`_run_once` in a separate thread until it is stopped or fails.

    Args:
        name: name of the thread.

    """

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        # A daemon thread, so that the process ends after an error in the main thread.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _run_once(self) -> None:
        """Do one iteration, which waits for at most a fraction of a second."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """Report the error that ends the thread."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and join it.

        Raises:
            RuntimeError: the thread did not end within 10 seconds.

        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_END_LIMIT_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the thread {self._thread.name} did not end in {_END_LIMIT_S:g} s")

    # Gradients are enabled for each thread separately, and a new thread starts with them enabled.
    @torch.no_grad()
    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._run_once()
        except Exception as error:  # of any type: a thread that ends silently stops the other ranks
            self._fail(error)
        self._end()

    def _end(self) -> None:  # noqa: B027 (for threads with something left to do)
        """Called by the thread at its end."""


class ServerLoop(BackgroundThread):
    """Passes the messages at a rank's server port to its servers, until a rank fails.

    The failure of a rank ends the run: the loop of every other rank learns of it by a report of the
    failed rank or by its own watch, ends the waits in collectives of gloo, and raises the error in
    the threads of its rank. It reports it to all ranks in turn, so all of them raise one error.

    Args:
        ports: ports of this rank. Only this thread uses those of the server and the watch from
            :meth:`start` on.

    Attributes:
        servers: servers of the rank, set before the start.
        failure: error that has ended the loop or will end it, or None.

    """

    servers: Servers

    def __init__(self, ports: Ports) -> None:
        super().__init__("server loop")
        self._ports = ports
        self._watching = True
        self._tick_at = self._watch_at = 0.0
        self.failure: BaseException | None = None

    def stop_watching(self) -> None:
        """Ranks may leave from now on. From any thread."""
        self._watching = False

    def check(self) -> None:
        """Raise the error of the loop, if there is one, in the calling thread."""
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException) -> None:
        """End the loop, and the run on all ranks, by this error. From any thread."""
        if self.failure is None:  # the first one is the cause of the others
            self.failure = error

    def _fail(self, error: Exception) -> None:
        self.fail(error)

    @override
    def _end(self) -> None:
        if self.failure is None:
            return
        try:
            self._ports.alarm.send_to_all(_report(self.failure))
        finally:
            # If the main thread does not end now, it may be waiting in a collective of gloo.
            if not self._stopping.wait(_NOTICE_S):
                close_connections()

    def _run_once(self) -> None:
        if self.failure is not None:
            raise RuntimeError("another thread of this rank has failed")
        # One message in an iteration, so that a flood of them delays neither ticks nor the watch.
        received = self._ports.server.receive(_TICK_S)
        now = time.monotonic()
        if self._watching and now >= self._watch_at:
            self._watch_at = now + _WATCH_S
            self._ports.check()
        if received is not None and received.message.kind == Kind.FAILED:
            raise _reported(received)
        if received is not None:
            self.servers.handle(received, now)
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            self.servers.tick(now)


def _report(error: BaseException) -> Message:
    """Report of a failure to the other ranks."""
    # The others raise the error of a lost rank as it is.
    name = "lost" if isinstance(error, PeerError) else type(error).__name__
    return Message(Kind.FAILED, facts={"error": name, "text": str(error)[:_LONGEST_TEXT]})


def _reported(received: Received) -> PeerError:
    """The error that a report causes on this rank."""
    facts, rank = received.message.facts, received.sender
    if facts.get("error") == "lost":
        return PeerError(str(facts.get("text")))
    text = str(facts.get("text")).split("\n", 1)[0]
    return PeerError(
        f"rank {rank} has ended with {facts.get('error')}: {text}. See the log of rank {rank}, and "
        "restart from the last checkpoint"
    )
