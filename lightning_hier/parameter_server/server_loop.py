"""Background threads, and the server loop in which a rank serves the others."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received, ServerPort
from lightning_hier.parameter_server.watch import Watch

# Intervals of the work that does not depend on messages. Users set time-outs of servers (tau_1) to
# some tens of milliseconds.
_TICK_S = 0.01
# Shorter than a reconnection, so that a rank that returns is lost to all of the others or to none.
_WATCH_S = 0.02
_END_LIMIT_S = 10.0


class Replies(Protocol):
    """The methods of a server port that handlers use."""

    def send(self, address: bytes, message: Message) -> bool:
        """Reply without waiting; return False if the peer is gone or its queue is full."""

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        """Whether part of a large message of this kind about this block is still queued."""


def send_again(replies: Replies, address: bytes, message: Message) -> None:
    """Answer a repeated request, unless the answer is still queued, as on a slow link."""
    if not replies.is_sending(address, message.kind, message.block):
        replies.send(address, message)


class Handler(Protocol):
    """Handles some kinds of messages in the server loop.

    A handler does no I/O except sending, and receives the time as an argument, so that tests can
    call it message by message.
    """

    kinds: frozenset[Kind]
    """Kinds of messages that it handles. Each kind has one handler."""

    def handle(self, received: Received, now: float) -> None:
        """Handle a message. ``now`` is ``time.monotonic()`` in seconds."""

    def tick(self, now: float) -> None:
        """Do the work that is due, such as unsent replies and time limits. Called regularly."""

    def peer_gone(self, rank: int, now: float) -> None:
        """Handle the loss or the departure of a rank, which will not return."""


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


class ServerLoop(BackgroundThread):
    """Receives messages at a rank's server port and calls their handlers.

    Args:
        port: port that only this thread uses from :meth:`start` on.
        watch: detects lost ranks.
        handlers: handlers of the messages.

    Attributes:
        lost: returns the ranks that have been lost, and why. From any thread.
        gone: returns the ranks that have been lost or have left. From any thread.

    """

    def __init__(self, port: ServerPort, watch: Watch, handlers: Sequence[Handler]) -> None:
        super().__init__("server loop")
        self.lost = watch.lost
        self.gone = watch.gone
        self._port = port
        self._watch = watch
        self._handlers: list[Handler] = []
        self._by_kind: dict[Kind, Handler] = {}
        self._known_gone: set[int] = set()
        self._tick_at = self._watch_at = 0.0
        self._shutting_down = False
        self._failure: Exception | None = None
        self.add(handlers)

    def add(self, handlers: Sequence[Handler]) -> None:
        """Add handlers, before the start."""
        self._handlers += handlers
        self._by_kind |= {kind: handler for handler in handlers for kind in handler.kinds}

    def begin_shutdown(self) -> None:
        """Record the end of training, so that shards of leaving ranks are not taken over."""
        self._shutting_down = True

    def check(self) -> None:
        """Raise the error of the loop, if there is one, in the calling thread."""
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: Exception) -> None:
        self._failure = error

    def _run_once(self) -> None:
        # One message in an iteration, so that a flood of them delays neither ticks nor the watch.
        received = self._port.receive(_TICK_S)
        now = time.monotonic()
        if now >= self._watch_at:
            self._watch_at = now + _WATCH_S
            # Before the message is handled, because its sender may be lost to the other ranks.
            self._watch.poll(unread=received is not None)
        for rank in sorted(self.gone() - self._known_gone):
            self._known_gone.add(rank)
            self._note_gone(rank, now)
        if received is not None:
            self._handle(received, now)
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            for handler in self._handlers:
                handler.tick(now)

    def _handle(self, received: Received, now: float) -> None:
        if received.sender in self._watch.lost():
            # Handlers continue without a lost rank, so its requests would never be answered.
            facts = {"reason": self._watch.lost()[received.sender]}
            self._port.send(received.address, Message(Kind.EXPELLED, facts=facts))
        elif received.message.kind in self._by_kind:
            self._by_kind[received.message.kind].handle(received, now)

    def _note_gone(self, rank: int, now: float) -> None:
        left_at_the_end = self._shutting_down and rank in self._watch.left()
        # Only the leader of collectives needs to know at the end: the last barrier may wait for it.
        for handler in self._handlers:
            if not left_at_the_end or Kind.CONTRIBUTION in handler.kinds:
                handler.peer_gone(rank, now)
