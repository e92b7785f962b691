"""A request channel and a server port of tests, without threads, sockets and clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_hier.parameter_server.message import Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.request_channel import RequestChannel


class LoneChannel(RequestChannel):
    """A request channel that passes messages to a function.

    Args:
        send: function that gets a rank and a message, and returns whether it is queued.

    Attributes:
        sending: ranks to which a message is still queued.
        inbox: received messages that :meth:`poll` will handle.

    """

    def __init__(self, send: Callable[[int, Message], bool]) -> None:
        self.sending: set[int] = set()
        self.inbox: list[Received] = []
        port: Any = _Port(send, self.sending, self.inbox)
        super().__init__(port, _Loop(), timeout_s=1.0)

    def tick(self) -> None:
        """Send unsent requests as :meth:`poll` does."""
        assert not self.inbox
        self.poll()

    def receive(self, received: Received, now: float) -> None:
        """Handle a message as :meth:`poll` does."""
        handler = self._handlers.get(received.message.kind)
        if handler is not None:
            handler(received, now)


class _Port:
    def __init__(
        self, send: Callable[[int, Message], bool], sending: set[int], inbox: list[Received]
    ) -> None:
        self.send = send
        self.send_to_all = lambda message: None
        self._sending = sending
        self._inbox = inbox

    def is_sending(self, rank: int) -> bool:
        return rank in self._sending

    def receive(self, timeout_s: float) -> Received | None:
        return self._inbox.pop(0) if self._inbox else None


class _Loop:
    def check(self) -> None: ...

    def fail(self, error: BaseException) -> None:
        raise error


class Replying:
    """The sending side of a server port, on which no message stays queued.

    Attributes:
        send: function that gets an address and a message, and returns whether it is queued.

    """

    def __init__(self, send: Callable[[bytes, Message], bool]) -> None:
        self.send = send

    def is_sending(self, address: bytes) -> bool:
        return False
