"""Ports of a rank: one server port for all ranks, and one client port per thread."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import zmq

from lightning_hier.parameter_server.authentication import Register
from lightning_hier.parameter_server.connection import Connection, ConnectionContext
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.refusals import Refused
from lightning_hier.parameter_server.transport import Socket


@dataclass(frozen=True, eq=False)
class Received:
    """A received message.

    Attributes:
        sender: authenticated rank of the sender.
        address: address for replies by :meth:`ServerPort.send`. Empty for a client.
        message: received message.

    """

    sender: int
    address: bytes
    message: Message


class ServerPort:
    """The server's end of all connections of a rank. Used by one thread."""

    def __init__(self, socket: Socket, register: Register, context: ConnectionContext) -> None:
        self._socket = socket
        self._register = register
        self._context = context
        self._connections: dict[bytes, Connection] = {}
        self._senders: dict[tuple[bytes, str | None], int] = {}

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None if none arrives within ``timeout_s`` seconds.

        Refused messages are counted and skipped.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            if not self._socket.poll(_milliseconds_until(deadline_s)):
                return None
            try:
                received = self._read()
            except Refused as refused:
                self._context.refusals.add(refused)
                # A flood of refused messages must not keep the server loop from its work.
                if time.monotonic() >= deadline_s:
                    return None
            else:
                if received is not None:
                    return received

    def send(self, address: bytes, message: Message) -> bool:
        """Reply without waiting; return False if the peer is gone or its queue is full.

        Args:
            address: address of a received message.
            message: its payload must not be changed any more.

        """
        return self._connections[address].send(self._socket, message, address)

    def is_sending(self, address: bytes, kind: Kind, block: int) -> bool:
        """Whether part of a large message of this kind about this block is still queued.

        Args:
            address: address of a received message.
            kind: kind of the message.
            block: block of the message.

        """
        return self._connections[address].is_sending(kind, block)

    def _read(self) -> Received | None:
        address_frame, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        address, authenticated = address_frame.bytes, _authenticated(frames)
        # Checked once for each pair. The key is part of it, because every rank knows all tokens and
        # could use the address of another rank, whose messages have been accepted before.
        rank = self._senders.get((address, authenticated))
        if rank is None:
            rank = self._register.sender(address, authenticated)
            self._senders[address, authenticated] = rank
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(rank, self._context)
        message = connection.accept(frames)
        return None if message is None else Received(rank, address, message)


class ClientPort:
    """The client's end of a connection to each server, including that of its own rank."""

    def __init__(self, sockets: Mapping[int, Socket], context: ConnectionContext) -> None:
        self._refusals = context.refusals
        self._sockets = dict(sockets)
        self._connections = {rank: Connection(rank, context) for rank in sockets}
        self._ranks = {socket: rank for rank, socket in sockets.items()}
        self._poller = zmq.Poller()
        for socket in sockets.values():
            self._poller.register(socket, zmq.POLLIN)
        # One poll may read a message from every socket, so that no server has to wait for another.
        self._inbox: deque[Received] = deque()

    def send(self, rank: int, message: Message) -> bool:
        """Send without waiting; return False if the peer is gone or its queue is full.

        Args:
            rank: rank of the server.
            message: its payload must not be changed any more.

        """
        return self._connections[rank].send(self._sockets[rank], message)

    def send_to_all(self, message: Message) -> None:
        """Send to every rank of this port, as :meth:`send` does."""
        for rank in self._sockets:
            self.send(rank, message)

    def is_sending(self, rank: int, kind: Kind, block: int) -> bool:
        """Whether part of a large message of this kind about this block is still queued."""
        return self._connections[rank].is_sending(kind, block)

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next reply, or None if none is complete within ``timeout_s`` seconds.

        Refused messages are counted and skipped.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            if self._inbox:
                return self._inbox.popleft()
            ready = self._poller.poll(_milliseconds_until(deadline_s))
            if not ready:
                return None
            for socket, _ in ready:
                self._read(socket)

    def close(self) -> None:
        """Close the sockets. Queued messages are sent for up to a second."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()

    def _read(self, socket: Socket) -> None:
        rank = self._ranks[socket]
        try:
            message = self._connections[rank].accept(socket.recv_multipart(zmq.NOBLOCK, copy=False))
        except Refused as refused:
            self._refusals.add(refused)
        else:
            if message is not None:
                self._inbox.append(Received(rank, b"", message))


def _authenticated(frames: Sequence[zmq.Frame]) -> str | None:
    """The rank whose CURVE key the sender has. None for a peer on this host."""
    try:
        return str(frames[0].get("User-Id")) if frames else None
    except zmq.ZMQError:  # the connection has no such property
        return None


def _milliseconds_until(deadline_s: float) -> int:
    """Milliseconds until ``time.monotonic()`` reaches ``deadline_s``, at least 0."""
    return max(0, math.ceil(1000 * (deadline_s - time.monotonic())))
