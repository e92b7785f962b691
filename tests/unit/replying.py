"""A server's port for tests: hands what is sent to a function."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hier.parameter_server.message import Kind, Message


class Replying:
    """The answering half of a port.

    Attributes:
        send: what is called.
        sending: addresses to which what was sent is still queued.

    """

    def __init__(self, send: Callable[[bytes, Message], bool]) -> None:
        self.send = send
        self.sending: set[bytes] = set()

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        return address in self.sending
