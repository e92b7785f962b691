"""Messages between ranks outside the process group, and their frames.

The first frame is JSON, the next one the raw bytes of the payload. The rest of a large payload
follows in parts, each a ZeroMQ message, so that encryption, transfer, decryption and copies of one
push overlap and the memory of the parts is reused. Nothing is pickled. Ranks of one job have the
same byte order.
"""

from __future__ import annotations

import json
import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum, unique
from typing import Any

import torch
from torch import Tensor

# Measured: with parts of 1 to 4 MiB a push of 90 MB is twice as fast as in one part.
PART_BYTES = 2**21


class MalformedMessage(ValueError):
    """Frames are not a message. The text describes the fault."""


@unique
class Kind(IntEnum):
    """Purpose of a message. The values are sent, the names are part of metrics."""

    PUSH = 1  # to a server: gradients; it answers with newer values
    ABSTAIN = 2  # to a server: as PUSH, without gradients
    BLOCK = 3  # from a server: the current values
    ARRIVE = 4  # to a server: the sender waits at a rendezvous
    FINAL = 5  # from a server: the values at the end of a rendezvous
    STATE_REQUEST = 6  # to a server, from the rank that saves a checkpoint
    STATE = 7  # from a server: the values and the state of their optimizer
    WAITING = 8  # to all servers: the sender waits in a collective of all ranks
    FAILED = 9  # to all ranks: the reason why the sender ends


# An empty tensor, so that senders and receivers need no case for a message without one.
NO_PAYLOAD = torch.empty(0, dtype=torch.uint8)


# Without equality, because == of two payloads is a tensor.
@dataclass(frozen=True, eq=False)
class Message:
    """A message.

    Attributes:
        kind: purpose of the message.
        block: number of a shard (PSP-SGD) or of an optimizer (two-stage ASGD).
        timestamp: version of the values, or number of a collective, of a rendezvous or of a state
            request.
        facts: small values by name that JSON can represent.
        payload: 1-D contiguous tensor in host memory. A port sends it without a copy, so it must
            not be changed afterwards. A received payload is read-only: it is a view of a frame, or
            of memory that the ports reuse when no tensor refers to it.

    """

    kind: Kind
    block: int = 0
    timestamp: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    payload: Tensor = NO_PAYLOAD


class BufferPool:
    """Host memory for payloads of several parts, reused when no tensor refers to it.

    The kernel needs more time for new memory (a page fault for every 4 KiB) than for the transfer,
    and many pushes have the same size. Thread-safe.
    """

    def __init__(self, kept_bytes: int = 2**28) -> None:
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


def encode(message: Message, part_bytes: int = PART_BYTES) -> tuple[bytes, list[memoryview]]:
    """The first frame of a message, and views of its payload's memory.

    Args:
        message: message to send.
        part_bytes: payload bytes in one frame.

    Raises:
        TypeError: JSON cannot represent the facts.

    """
    dtype = str(message.payload.dtype).removeprefix("torch.")
    # Through uint8, since NumPy has no bfloat16.
    raw = message.payload.detach().view(torch.uint8).numpy().data
    header = [message.kind, message.block, message.timestamp, message.facts, dtype, raw.nbytes]
    # At least one, so that every message has two frames.
    starts = range(0, max(1, raw.nbytes), part_bytes)
    return json.dumps(header).encode(), [raw[at : at + part_bytes] for at in starts]


class Assembler:
    """Assembles the messages of one connection, which arrive in order and complete.

    Args:
        memory: memory for payloads of several parts.

    """

    def __init__(self, memory: BufferPool) -> None:
        self._memory = memory
        self._message: Message | None = None
        self._view = memoryview(b"")
        self._filled = 0

    def add(self, frames: Sequence[memoryview]) -> Message | None:
        """The message that these frames complete, or None if parts are missing.

        A payload of one part is a view of its frame.

        Raises:
            MalformedMessage: the frames cannot be those of :func:`encode`. They are discarded.

        """
        message, self._message = self._message, None
        if len(frames) != (2 if message is None else 1):
            raise MalformedMessage(f"{len(frames)} frames of a message")
        raw = frames[-1]
        if message is None:
            message, nbytes = _read_header(frames[0])
            if raw.nbytes == nbytes:
                return _complete(message, raw)
            self._view, self._filled = self._memory.take(nbytes), 0
        end = self._filled + raw.nbytes
        if end > len(self._view) or not raw.nbytes:
            raise MalformedMessage(f"{raw.nbytes} bytes at {self._filled} of {len(self._view)}")
        self._view[self._filled : end] = raw
        self._filled = end
        if end < len(self._view):
            self._message = message
            return None
        view, self._view = self._view, memoryview(b"")
        return _complete(message, view)


def _read_header(header: memoryview) -> tuple[Message, int]:
    """A message with an empty payload, and the bytes of its payload."""
    try:
        kind, block, timestamp, facts, name, nbytes = json.loads(bytes(header))
        dtype = getattr(torch, name)
        if not (isinstance(dtype, torch.dtype) and nbytes % dtype.itemsize == 0 <= nbytes):
            raise ValueError(f"{nbytes} bytes of {name}")
        empty = torch.empty(0, dtype=dtype)
        return Message(Kind(kind), int(block), int(timestamp), dict(facts), empty), int(nbytes)
    # RecursionError for deeply nested arrays.
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedMessage(f"a header that cannot be read: {error}") from error


def _complete(message: Message, raw: memoryview) -> Message:
    if not raw.nbytes:  # torch.frombuffer refuses an empty buffer
        return message
    dtype = message.payload.dtype
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        payload = torch.frombuffer(raw, dtype=dtype)
    # Copied if not aligned, because some kernels need aligned elements.
    aligned = payload.data_ptr() % min(dtype.itemsize, 8) == 0
    return replace(message, payload=payload if aligned else payload.clone())
