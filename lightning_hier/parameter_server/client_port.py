"""Through what one thread of a rank speaks to all servers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import zmq

from lightning_hier.parameter_server.connection import (
    Connection,
    ConnectionContext,
    milliseconds_until,
)
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.refusals import Refused
from lightning_hier.parameter_server.server_port import Received
from lightning_hier.parameter_server.sockets import Socket
from lightning_hier.parameter_server.watch import Watch


class ClientPort:
    """The client's ends of one connection to each server, that of its own rank included."""

    def __init__(
        self, sockets: Mapping[int, Socket], context: ConnectionContext, watch: Watch
    ) -> None:
        self._watch = watch
        self._refusals = context.refusals
        self._sockets = dict(sockets)
        self._connections = {rank: Connection(rank, context) for rank in sockets}
        self._ranks = {socket: rank for rank, socket in sockets.items()}
        self._poller = zmq.Poller()
        for socket in sockets.values():
            self._poller.register(socket, zmq.POLLIN)
        self._inbox: deque[Received] = deque()

    def send(self, rank: int, message: Message) -> bool:
        """Send without waiting; False if the peer is gone or its queue is full.

        Args:
            rank: whose server to send to.
            message: its payload must not be changed any more.

        """
        self._drop_lost()
        if rank not in self._sockets or rank in self._watch.left():
            return False
        return self._connections[rank].send(self._sockets[rank], message)

    def is_sending(self, rank: int, kind: Kind, block: int) -> bool:
        """Whether some of a large message of this kind about this block has not left yet."""
        return self._connections[rank].is_sending(kind, block)

    def receive(self, timeout_s: float) -> Received | None:
        """The next reply, or None if none is complete within ``timeout_s`` seconds.

        What is refused is counted and passed over.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._drop_lost()
            if self._inbox:
                return self._inbox.popleft()
            ready = self._poller.poll(milliseconds_until(deadline_s))
            if not ready:
                return None
            for socket, _ in ready:
                self._read(socket)

    def close(self) -> None:
        """Close the sockets; queued messages have a moment to leave."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()

    def _read(self, socket: Socket) -> None:
        rank = self._ranks[socket]
        try:
            message = self._connections[rank].accept(socket.recv_multipart(zmq.NOBLOCK, copy=False))
        except Refused as refused:
            self._refusals.note(refused)
        else:
            if message is not None:
                self._inbox.append(Received(rank, b"", message))

    def _drop_lost(self) -> None:
        """Free what waits for ranks that are lost, after what they have said is read.

        Ranks that have left are kept: their last words may still be on the way.
        """
        for rank in self._watch.lost().keys() & self._sockets.keys():
            socket = self._sockets.pop(rank)
            while socket.poll(0):
                self._read(socket)
            self._poller.unregister(socket)
            socket.close(linger=0)
