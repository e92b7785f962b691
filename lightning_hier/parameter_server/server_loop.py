"""The thread in which a rank serves: it receives messages and calls their handlers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from lightning_hier.parameter_server.background import BackgroundThread
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received, ServerPort, Watch

# How long a wait for messages may last at most: peers that have gone are looked for this often.
_LONGEST_WAIT_S = 0.1


class Handler(Protocol):
    """One thing that a rank does for the others. It is called in the server_loop's thread only.

    A handler does no input or output but sending, and takes the time as an argument, so that tests
    drive it message by message.
    """

    kinds: frozenset[Kind]
    """What it handles; a kind belongs to one handler of a server_loop."""

    def handle(self, received: Received, now: float) -> None:
        """Take a message; ``now`` is ``time.monotonic()`` in seconds."""

    def deadline(self) -> float | None:
        """When :meth:`tick` is to be called if nothing arrives; None: never."""

    def tick(self, now: float) -> None:
        """Do what time alone brings about."""

    def peer_gone(self, rank: int, now: float) -> None:
        """A rank has been lost or has left; it will not come back."""


class ServerLoop(BackgroundThread):
    """Owns a rank's server port while it serves.

    Args:
        port: used by the server_loop's thread alone from :meth:`start` on.
        watch: tells which ranks are gone.
        handlers: what to do.

    """

    def __init__(self, port: ServerPort, watch: Watch, handlers: Sequence[Handler]) -> None:
        super().__init__("server_loop")
        self._port = port
        self._watch = watch
        self._handlers: list[Handler] = []
        self._by_kind: dict[Kind, Handler] = {}
        self._told: set[int] = set()
        self._shutting_down = False
        self.add(handlers)

    def add(self, handlers: Sequence[Handler]) -> None:
        """Give it more to do, before it starts."""
        self._handlers += handlers
        self._by_kind |= {kind: handler for handler in handlers for kind in handler.kinds}

    def begin_shutdown(self) -> None:
        """Know that the work is done: ranks that leave from now on need nobody to stand in."""
        self._shutting_down = True

    def lost(self) -> dict[int, str]:
        """Ranks that have been lost, and why. From any thread."""
        return self._watch.lost()

    def gone(self) -> set[int]:
        """Ranks that have been lost or have left. From any thread."""
        return {*self._watch.lost(), *self._watch.left()}

    def _run_once(self) -> None:
        received = self._port.receive(self._patience())
        now = time.monotonic()
        # Before the message: it may come from a rank that the others have given up.
        self._watch.poll(unread=received is not None)
        for rank in sorted(self.gone() - self._told):
            self._told.add(rank)
            parted = self._shutting_down and rank in self._watch.left()
            for handler in self._handlers:
                if not parted or Kind.CONTRIBUTION in handler.kinds:
                    handler.peer_gone(rank, now)
        if received is not None:
            self._dispatch(received, now)
        for handler in self._handlers:
            due = handler.deadline()
            if due is not None and due <= now:
                handler.tick(now)

    def _patience(self) -> float:
        now = time.monotonic()
        due = [when for handler in self._handlers if (when := handler.deadline()) is not None]
        return max(0.0, min([_LONGEST_WAIT_S, *(when - now for when in due)]))

    def _dispatch(self, received: Received, now: float) -> None:
        reason = self._watch.lost().get(received.sender)
        if reason is not None:
            facts = {"reason": reason}
            self._port.send(received.address, Message(Kind.EXPELLED, facts=facts))
            return
        handler = self._by_kind.get(received.message.kind)
        if handler is not None:
            handler.handle(received, now)
