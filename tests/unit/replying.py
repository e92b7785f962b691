"""Server port of tests. It passes messages to a function."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hier.parameter_server.message import Kind, Message


class Replying:
    """The sending side of a server port.

    Attributes:
        send: function that gets an address and a message, and returns whether it is queued.
        sending: addresses to which a message is still queued.

    """

    def __init__(self, send: Callable[[bytes, Message], bool]) -> None:
        self.send = send
        self.sending: set[bytes] = set()

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        return address in self.sending
