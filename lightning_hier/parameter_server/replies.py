"""What a handler needs of its rank's port: to answer, and to know what has not left yet."""

from __future__ import annotations

from typing import Protocol

from lightning_hier.parameter_server.message import Kind, Message

RETRY_S = 0.05
"""After so many seconds a handler tries again to send what a port did not take."""


class Replies(Protocol):
    """The answering half of a :class:`~lightning_hier.parameter_server.server_port.ServerPort`."""

    def send(self, address: bytes, message: Message) -> bool:
        """Reply without waiting; False if the peer is gone or its queue is full."""

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        """Whether some of a large message of this kind about this block has not left yet."""
