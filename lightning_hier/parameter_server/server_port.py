"""Where a rank is spoken to by all ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from lightning_hier.parameter_server.connection import (
    Connection,
    ConnectionContext,
    milliseconds_until,
)
from lightning_hier.parameter_server.credentials import Register
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.refusals import Refused
from lightning_hier.parameter_server.sockets import Socket
from lightning_hier.parameter_server.watch import Watch


@dataclass(frozen=True, eq=False)
class Received:
    """A message that has come in.

    Attributes:
        sender: the rank that has sent it, as it was authenticated, not as it says.
        address: where :meth:`ServerPort.send` replies to; empty for a client.
        message: what was sent.

    """

    sender: int
    address: bytes
    message: Message


class ServerPort:
    """The server's end of all connections of a rank. Of one thread."""

    def __init__(
        self, socket: Socket, register: Register, context: ConnectionContext, watch: Watch
    ) -> None:
        self._socket = socket
        self._register = register
        self._context = context
        self._watch = watch
        self._connections: dict[bytes, Connection] = {}

    def receive(self, timeout_s: float) -> Received | None:
        """The next message, or None if none comes within ``timeout_s`` seconds.

        What is refused is counted and passed over. :attr:`Kind.BYE` is noted in the watch.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            if not self._socket.poll(milliseconds_until(deadline_s)):
                return None
            try:
                received = self._read()
            except Refused as refused:
                self._context.refusals.note(refused)
                if time.monotonic() >= deadline_s:
                    return None
            else:
                if received is not None:
                    return received

    def send(self, address: bytes, message: Message) -> bool:
        """Reply without waiting; False if the peer is gone or its queue is full.

        Args:
            address: of a message that was received.
            message: its payload must not be changed any more.

        """
        return self._connections[address].send(self._socket, message, address)

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        """Whether some of a large message of this kind about this block has not left yet.

        Args:
            address: of a message that was received.
            kind: of the message.
            block: that it is about.

        """
        return self._connections[address].is_sending(kind, block)

    def _read(self) -> Received | None:
        address_frame, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        address = address_frame.bytes
        rank = self._register.sender(address, _authenticated(frames))
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(rank, self._context)
        message = connection.accept(frames)
        if message is None:
            return None
        if message.kind == Kind.BYE:
            self._watch.note_left(rank)
            return None
        return Received(rank, address, message)


def _authenticated(frames: Sequence[zmq.Frame]) -> str | None:
    """The rank whose CURVE key the sender has proved to hold; None for one on this host."""
    try:
        return str(frames[0].get("User-Id")) if frames else None
    except zmq.ZMQError:  # the connection has no such property
        return None
