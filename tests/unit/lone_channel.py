"""A request channel of tests, without threads, sockets and clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.request_channel import RequestChannel


class LoneChannel(RequestChannel):
    """A request channel that passes messages to a function.

    Args:
        send: function that gets a rank and a message, and returns whether it is queued.

    Attributes:
        lost_ranks: lost ranks and the reasons. Tests add ranks.
        time: time of this channel, in seconds.
        sending: ranks to which a message is still queued.
        inbox: received messages that :meth:`poll` will handle.

    """

    def __init__(self, send: Callable[[int, Message], bool]) -> None:
        self.lost_ranks: dict[int, str] = {}
        self.sending: set[int] = set()
        self.inbox: list[Received] = []
        port: Any = _Port(send, self.sending, self.inbox)
        super().__init__(port, _Loop(self.lost_ranks), timeout_s=1.0)
        self.time = 0.0
        self.now = lambda: self.time

    def receive(self, received: Received, now: float) -> None:
        """Handle a message as :meth:`poll` does."""
        handler = self._handlers.get(received.message.kind)
        if handler is not None:
            handler(received, now)

    def lose(self, rank: int, now: float) -> None:
        """Note that a rank is lost as :meth:`poll` does."""
        self.lost_ranks[rank] = "it was killed"
        self._note_gone(rank, now)


class _Port:
    def __init__(
        self, send: Callable[[int, Message], bool], sending: set[int], inbox: list[Received]
    ) -> None:
        self.send = send
        self._sending = sending
        self._inbox = inbox

    def is_sending(self, rank: int, kind: Kind, block: int) -> bool:
        return rank in self._sending

    def receive(self, timeout_s: float) -> Received | None:
        return self._inbox.pop(0) if self._inbox else None


class _Loop:
    def __init__(self, lost: dict[int, str]) -> None:
        self._lost = lost

    def check(self) -> None: ...

    def gone(self) -> set[int]:
        return set(self._lost)

    def lost(self) -> dict[int, str]:
        return self._lost
