"""The thread of a rank that serves: it receives, and hands each message to the duty it is for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from lightning_hier.parameter_server.background import Background
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received, ServerPort, Watch

# How long a wait for messages may last at most: peers that have gone are looked for this often.
_LONGEST_WAIT_S = 0.1


class Duty(Protocol):
    """One thing that a rank does for the others. It is called in the servant's thread only.

    A duty does no input or output but sending, and takes the time as an argument, so that tests
    drive it message by message.
    """

    kinds: frozenset[Kind]
    """What it handles; a kind belongs to one duty of a servant."""

    def handle(self, received: Received, now: float) -> None:
        """Take a message; ``now`` is ``time.monotonic()`` in seconds."""

    def deadline(self) -> float | None:
        """When :meth:`tick` is to be called if nothing arrives; None: never."""

    def tick(self, now: float) -> None:
        """Do what time alone brings about."""

    def peer_gone(self, rank: int, now: float) -> None:
        """A rank has been lost or has left; it will not come back."""


class Servant(Background):
    """Owns a rank's server port while it serves.

    Args:
        port: used by the servant's thread alone from :meth:`start` on.
        watch: tells which ranks are gone.
        duties: what to do.

    """

    def __init__(self, port: ServerPort, watch: Watch, duties: Sequence[Duty]) -> None:
        super().__init__("servant")
        self._port = port
        self._watch = watch
        self._duties: list[Duty] = []
        self._by_kind: dict[Kind, Duty] = {}
        self._told: set[int] = set()
        self._parting = False
        self.add(duties)

    def add(self, duties: Sequence[Duty]) -> None:
        """Give it more to do, before it starts."""
        self._duties += duties
        self._by_kind |= {kind: duty for duty in duties for kind in duty.kinds}

    def part(self) -> None:
        """Know that the work is done: ranks that leave from now on need nobody to stand in."""
        self._parting = True

    def lost(self) -> dict[int, str]:
        """Ranks that have been lost, and why. From any thread."""
        return self._watch.lost()

    def gone(self) -> set[int]:
        """Ranks that have been lost or have left. From any thread."""
        return {*self._watch.lost(), *self._watch.left()}

    def _turn(self) -> None:
        received = self._port.receive(self._patience())
        now = time.monotonic()
        # Before the message: it may come from a rank that the others have given up.
        self._watch.poll(unread=received is not None)
        for rank in sorted(self.gone() - self._told):
            self._told.add(rank)
            parted = self._parting and rank in self._watch.left()
            for duty in self._duties:
                if not parted or Kind.MEET in duty.kinds:
                    duty.peer_gone(rank, now)
        if received is not None:
            self._dispatch(received, now)
        for duty in self._duties:
            due = duty.deadline()
            if due is not None and due <= now:
                duty.tick(now)

    def _patience(self) -> float:
        now = time.monotonic()
        due = [when for duty in self._duties if (when := duty.deadline()) is not None]
        return max(0.0, min([_LONGEST_WAIT_S, *(when - now for when in due)]))

    def _dispatch(self, received: Received, now: float) -> None:
        reason = self._watch.lost().get(received.sender)
        if reason is not None:
            facts = {"reason": reason}
            self._port.send(received.address, Message(Kind.EXPELLED, facts=facts))
            return
        duty = self._by_kind.get(received.message.kind)
        if duty is not None:
            duty.handle(received, now)
