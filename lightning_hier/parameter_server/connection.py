"""A connection with a peer: sequence numbers, queues, and assembly of messages from parts."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import zmq

from lightning_hier.comm.traffic import Tier, Traffic
from lightning_hier.parameter_server.message import (
    Kind,
    Limits,
    MalformedMessage,
    Message,
)
from lightning_hier.parameter_server.refusals import Refusals, Refused
from lightning_hier.parameter_server.transport import Socket
from lightning_hier.parameter_server.wire import Part, decode, encode

# Smaller payloads are copied, which costs less than waiting until ZeroMQ releases them.
ZERO_COPY_BYTES = 65536


class BufferPool:
    """Host memory for payloads of several parts, reused when no tensor refers to it.

    The kernel needs more time for new memory (a page fault for every 4 KiB) than for the transfer,
    and many pushes have the same size. Thread-safe.
    """

    def __init__(self, kept_bytes: int) -> None:
        """Keep up to ``kept_bytes`` for later payloads. The oldest block is freed first."""
        self._kept_bytes = kept_bytes
        # No lock, because a tensor may be freed in any thread during any operation, even in this
        # one.
        self._free: deque[bytearray] = deque()

    def take(self, nbytes: int) -> memoryview:
        """Memory of ``nbytes`` bytes for one tensor and its views."""
        block = self._find(nbytes)
        # A tensor on this view keeps it alive, so the view ends with the last tensor. Not at exit,
        # when nobody needs the block.
        view = memoryview(block)
        weakref.finalize(view, self._give_back, block).atexit = False
        return view

    def _find(self, nbytes: int) -> bytearray:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread has taken it
                break
            if len(block) == nbytes:
                return block
            self._free.append(block)
        return bytearray(nbytes)

    def _give_back(self, block: bytearray) -> None:
        self._free.append(block)
        while sum(map(len, tuple(self._free))) > self._kept_bytes:
            with suppress(IndexError):  # another thread has taken the last one
                self._free.popleft()


@dataclass(frozen=True)
class ConnectionContext:
    """Limits and counters of all connections of a rank."""

    rank: int
    limits: Limits
    refusals: Refusals
    traffic: Traffic
    tier_of: Callable[[int], Tier]
    memory: BufferPool


class _Queued(NamedTuple):
    """A part of a payload that ZeroMQ has not released yet, and its message."""

    tracker: zmq.MessageTracker
    nbytes: int
    kind: Kind
    block: int


class Connection:
    """This end of a connection with ``rank``. Used by one thread."""

    def __init__(self, rank: int, context: ConnectionContext) -> None:
        self.rank = rank
        self._context = context
        # Inside a process, memory is passed by reference. It is released when the receiver has
        # finished with it, which does not measure the queue.
        self._is_own = rank == context.rank
        self._tier = context.tier_of(rank)
        self._sent = 0
        self._received = 0
        self._waiting: deque[_Queued] = deque()
        self._waiting_bytes = 0
        self._reassembler = Reassembler(context.memory)

    def send(self, socket: Socket, message: Message, *address: bytes) -> bool:
        """Pass a message to ``socket`` without waiting and without copying its payload.

        Args:
            socket: socket of this connection.
            message: message whose payload must not be changed afterwards.
            address: address of the peer, if the socket has several peers.

        Returns:
            False if the peer is gone or its queue is full: the message will not arrive.

        """
        limits = self._context.limits
        # Inside a process, memory is passed by reference in one part.
        size = limits.payload_bytes if self._is_own else None
        parts = encode(message, self._sent + 1, limits, size)
        nbytes = message.payload.nbytes
        copied = nbytes <= ZERO_COPY_BYTES
        # Trackers measure the queue: ZeroMQ releases the memory of a part once it has been sent.
        tracked = not copied and not self._is_own
        if tracked and not self._has_room(nbytes):
            return False
        for header, facts, raw in parts:
            # Also if the part cannot be sent: the peer requires increasing numbers and allows gaps.
            self._sent += 1
            payload = zmq.Frame(raw, track=tracked, copy=copied)
            try:
                socket.send_multipart([*address, header, facts, payload], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                    return False  # the peer drops the parts that it has received
                raise
            if payload.tracker is not None:
                queued = _Queued(payload.tracker, raw.nbytes, message.kind, message.block)
                self._waiting.append(queued)
                self._waiting_bytes += raw.nbytes
        if not self._is_own:
            # Zero seconds, because no thread waits until the message arrives.
            self._context.traffic.add(
                self._tier,
                message.kind.name.lower(),
                payload_bytes=len(parts[0][1]) + nbytes,
                seconds=0.0,
            )
        return True

    def is_sending(self, kind: Kind, block: int) -> bool:
        """Whether part of a large message of this kind about this block is still queued.

        A message that has left the queue may still be in flight. A message that ZeroMQ copies, or
        that the connection has lost, is not queued.
        """
        self._drop_sent()
        return any((queued.kind, queued.block) == (kind, block) for queued in self._waiting)

    def accept(self, frames: Sequence[zmq.Frame]) -> Message | None:
        """The message that these frames complete, or None if parts are missing.

        Raises:
            Refused: the frames are malformed or replayed.

        """
        try:
            part = decode([frame.buffer for frame in frames], self._context.limits)
            if part.sequence <= self._received:
                detail = f"{part.message.kind.name} {part.sequence} after {self._received}"
                raise Refused("replayed", self._name, detail)
            self._received = part.sequence
            # Counted but not refused: the part itself starts a valid message.
            cut = self._reassembler.cut_by(part)
            if cut is not None:
                self._context.refusals.add(Refused("truncated", self._name, cut))
            return self._reassembler.add(part)
        except MalformedMessage as error:
            raise Refused("malformed", self._name, str(error)) from error

    @property
    def _name(self) -> str:
        return f"rank {self.rank}"

    def _has_room(self, nbytes: int) -> bool:
        self._drop_sent()
        limit = self._context.limits.queued_bytes
        return not self._waiting or self._waiting_bytes + nbytes <= limit

    def _drop_sent(self) -> None:
        while self._waiting and self._waiting[0].tracker.done:
            self._waiting_bytes -= self._waiting.popleft().nbytes


class Reassembler:
    """Assembles the message that arrives in parts on one connection."""

    def __init__(self, memory: BufferPool) -> None:
        """Assemble payloads of several parts in ``memory``."""
        self._memory = memory
        self._first: Part | None = None
        self._view = memoryview(b"")
        self._filled = 0

    def add(self, part: Part) -> Message | None:
        """The message that this part completes, or None if parts are missing.

        A payload of one part is a view of its frame. A first part discards an incomplete message.

        Raises:
            MalformedMessage: the part does not continue the last one. The message is discarded.

        """
        first, self._first = self._first, None
        if part.offset == 0:
            if part.raw.nbytes == part.nbytes:
                return _complete(part, part.raw)
            first, self._view, self._filled = part, self._memory.take(part.nbytes), 0
        elif first is None or not part.continues(first) or part.offset != self._filled:
            self._view = memoryview(b"")
            raise MalformedMessage(f"a part at {part.offset} that does not continue a message")
        self._view[part.offset : part.offset + part.raw.nbytes] = part.raw
        self._filled = part.offset + part.raw.nbytes
        if self._filled < part.nbytes:
            self._first = first
            return None
        view, self._view = self._view, memoryview(b"")
        return _complete(first, view)

    def cut_by(self, part: Part) -> str | None:
        """Description of the incomplete message that ``part`` discards, or None."""
        if self._first is None or part.offset:
            return None
        return f"{self._first.message.kind.name}, {self._filled} of {self._first.nbytes} bytes"


def _complete(part: Part, raw: memoryview) -> Message:
    if not raw.nbytes:  # torch.frombuffer refuses an empty buffer
        return replace(part.message, payload=torch.empty(0, dtype=part.dtype))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        payload = torch.frombuffer(raw, dtype=part.dtype)
    # Copied if not aligned, because some kernels need aligned elements.
    aligned = payload.data_ptr() % min(part.dtype.itemsize, 8) == 0
    return replace(part.message, payload=payload if aligned else payload.clone())
