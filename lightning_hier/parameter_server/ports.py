"""Ports of a rank: one server port for all ranks, and one client port per thread."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import zmq

from lightning_hier.comm.traffic import Tier, Traffic
from lightning_hier.parameter_server.authentication import Refusals, Refused, Register
from lightning_hier.parameter_server.message import (
    PART_BYTES,
    Assembler,
    BufferPool,
    MalformedMessage,
    Message,
    encode,
)
from lightning_hier.parameter_server.transport import Socket

# Smaller payloads are copied, which costs less than waiting until ZeroMQ releases them.
ZERO_COPY_BYTES = 65536


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


@dataclass(frozen=True)
class PortContext:
    """Counters and memory of all ports of a rank."""

    rank: int
    traffic: Traffic
    tier_of: Callable[[int], Tier]
    refusals: Refusals = field(default_factory=Refusals)
    memory: BufferPool = field(default_factory=BufferPool)


class Connection:
    """This end of a connection with ``rank``. Used by one thread."""

    def __init__(self, rank: int, context: PortContext) -> None:
        self.rank = rank
        self._assembler = Assembler(context.memory)
        # Inside a process, memory is passed by reference. It is released when the receiver has
        # finished with it, which does not measure the queue.
        self._is_own = rank == context.rank
        self._traffic = context.traffic
        self._tier = context.tier_of(rank)
        self._trackers: deque[zmq.MessageTracker] = deque()

    def send(self, socket: Socket, message: Message, *address: bytes) -> bool:
        """Pass a message to ``socket`` without waiting and without copying its payload.

        Args:
            socket: socket of this connection.
            message: message whose payload must not be changed afterwards.
            address: address of the peer, if the socket has several peers.

        Returns:
            False if the connection has ended: the message will not arrive.

        """
        nbytes = message.payload.nbytes
        header, parts = encode(message, max(1, nbytes) if self._is_own else PART_BYTES)
        copied = nbytes <= ZERO_COPY_BYTES
        tracked = not copied and not self._is_own
        first = [*address, header]
        for part in parts:
            frame = zmq.Frame(part, track=tracked, copy=copied)
            try:
                socket.send_multipart([*first, frame], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                    return False
                raise
            if frame.tracker is not None:
                self._trackers.append(frame.tracker)
            first = [*address]
        if not self._is_own:
            # Zero seconds, because no thread waits until the message arrives.
            name, sent = message.kind.name.lower(), len(header) + nbytes
            self._traffic.add(self._tier, name, payload_bytes=sent, seconds=0.0)
        return True

    @property
    def is_sending(self) -> bool:
        """Whether part of a large message is still queued.

        A message that has left the queue may still be in flight.
        """
        # ZeroMQ releases the memory of a part once it has been sent.
        while self._trackers and self._trackers[0].done:
            self._trackers.popleft()
        return bool(self._trackers)

    def accept(self, frames: Sequence[zmq.Frame]) -> Message | None:
        """The message that these frames complete, or None if parts are missing.

        Raises:
            Refused: the frames are malformed.

        """
        try:
            return self._assembler.add([frame.buffer for frame in frames])
        except MalformedMessage as error:
            raise Refused("malformed", f"rank {self.rank}", str(error)) from error


class ServerPort:
    """The server's end of all connections of a rank. Used by one thread."""

    def __init__(self, socket: Socket, register: Register, context: PortContext) -> None:
        self._socket = socket
        self._register = register
        self._context = context
        self._connections: dict[bytes, Connection] = {}
        self._senders: dict[tuple[bytes, str | None], int] = {}

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next message, or None if none arrives within ``timeout_s`` seconds.

        Refused messages are counted and skipped.
        """
        until = time.monotonic() + timeout_s
        while self._socket.poll(_milliseconds_until(until)):
            try:
                received = self._read()
            except Refused as refused:
                self._context.refusals.add(refused)
                # A flood of refused messages must not keep the server loop from its work.
                if time.monotonic() >= until:
                    return None
            else:
                if received is not None:
                    return received
        return None

    def send(self, address: bytes, message: Message) -> bool:
        """Reply without waiting; return False if the peer is gone.

        Args:
            address: address of a received message.
            message: its payload must not be changed any more.

        """
        return self._connections[address].send(self._socket, message, address)

    def is_sending(self, address: bytes) -> bool:
        """Whether part of a large reply to this address is still queued."""
        return self._connections[address].is_sending

    def _read(self) -> Received | None:
        address_frame, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        address, key = address_frame.bytes, _key(frames)
        # Checked once for each pair. The key is part of it, because every rank knows all tokens and
        # could use the address of another rank, whose messages have been accepted before.
        rank = self._senders.get((address, key))
        if rank is None:
            rank = self._register.sender(address, key)
            self._senders[address, key] = rank
            self._connections.setdefault(address, Connection(rank, self._context))
        message = self._connections[address].accept(frames)
        return None if message is None else Received(rank, address, message)


class ClientPort:
    """The client's end of a connection to each server, including that of its own rank."""

    def __init__(self, sockets: Mapping[int, Socket], context: PortContext) -> None:
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
        """Send without waiting; return False if the peer is gone.

        Args:
            rank: rank of the server.
            message: its payload must not be changed any more.

        """
        return self._connections[rank].send(self._sockets[rank], message)

    def send_to_all(self, message: Message) -> None:
        """Send to every rank of this port, as :meth:`send` does."""
        for rank in self._sockets:
            self.send(rank, message)

    def is_sending(self, rank: int) -> bool:
        """Whether part of a large message to this rank is still queued."""
        return self._connections[rank].is_sending

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next reply, or None if there is none within ``timeout_s`` seconds."""
        until = time.monotonic() + timeout_s
        while not self._inbox:
            ready = self._poller.poll(_milliseconds_until(until))
            if not ready:
                return None
            for socket, _ in ready:
                self._read(socket)
        return self._inbox.popleft()

    def _read(self, socket: Socket) -> None:
        rank = self._ranks[socket]
        try:
            message = self._connections[rank].accept(socket.recv_multipart(zmq.NOBLOCK, copy=False))
        except Refused as refused:
            self._refusals.add(refused)
        else:
            if message is not None:
                self._inbox.append(Received(rank, b"", message))


def _key(frames: Sequence[zmq.Frame]) -> str | None:
    """The CURVE key of the sender. None for a peer on this host."""
    try:
        return str(frames[0].get("User-Id")) if frames else None
    except zmq.ZMQError:  # the connection has no such property
        return None


def _milliseconds_until(until: float) -> int:
    """Milliseconds until ``time.monotonic()`` reaches ``until``, at least 0."""
    return max(0, math.ceil(1000 * (until - time.monotonic())))
