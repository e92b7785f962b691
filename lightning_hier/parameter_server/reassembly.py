"""From parts to messages, in memory that is used again."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from dataclasses import replace

import torch
from torch import Tensor

from lightning_hier.parameter_server.message import MalformedMessage, Message
from lightning_hier.parameter_server.wire import Part


class BufferPool:
    """Host memory for payloads of several parts, used again when no tensor looks at it any more.

    Fresh memory costs the kernel more time than the transfer itself (a page fault for every 4
    KiB), and pushes of one size come again and again. From any thread.
    """

    def __init__(self, kept_bytes: int) -> None:
        """Keep up to ``kept_bytes`` for the next payloads; the oldest goes first."""
        self._kept_bytes = kept_bytes
        # No lock: a tensor may end in any thread, in the middle of anything.
        self._free: deque[bytearray] = deque()

    def take(self, nbytes: int) -> memoryview:
        """So much memory, to be written and then looked at by one tensor and its views."""
        block = self._find(nbytes)
        view = memoryview(block)
        weakref.finalize(view, self._give_back, block).atexit = False
        return view

    def _find(self, nbytes: int) -> bytearray:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread was quicker
                break
            if len(block) == nbytes:
                return block
            self._free.append(block)
        return bytearray(nbytes)

    def _give_back(self, block: bytearray) -> None:
        self._free.append(block)
        while sum(map(len, tuple(self._free))) > self._kept_bytes:
            self._free.popleft()


class Reassembler:
    """The message that is under way on one connection."""

    def __init__(self, memory: BufferPool) -> None:
        """Put payloads of several parts together in ``memory``."""
        self._memory = memory
        self._first: Part | None = None
        self._view = memoryview(b"")
        self._filled = 0

    def add(self, part: Part) -> Message | None:
        """The message that is complete with this part; None while there is more to come.

        A payload of one part is a view of the frame that it came in. A first part ends whatever
        was under way.

        Raises:
            MalformedMessage: the part does not go on where the last one ended; what was under
                way is given up.

        """
        first, self._first = self._first, None
        if part.offset == 0:
            if part.raw.nbytes == part.nbytes:
                return _complete(part, part.raw)
            first, self._view, self._filled = part, self._memory.take(part.nbytes), 0
        elif first is None or not part.continues(first) or part.offset != self._filled:
            self._view = memoryview(b"")
            raise MalformedMessage(f"a part at {part.offset} that continues nothing")
        self._view[part.offset : part.offset + part.raw.nbytes] = part.raw
        self._filled = part.offset + part.raw.nbytes
        if self._filled < part.nbytes:
            self._first = first
            return None
        view, self._view = self._view, memoryview(b"")
        return _complete(first, view)

    def cut_by(self, part: Part) -> str | None:
        """What of a message under way is lost if ``part`` comes next; None if nothing is."""
        if self._first is None or part.offset:
            return None
        return f"{self._first.message.kind.name}, {self._filled} of {self._first.nbytes} bytes"


def _complete(part: Part, raw: memoryview) -> Message:
    return replace(part.message, payload=None if part.dtype is None else _tensor(raw, part.dtype))


def _tensor(raw: memoryview, dtype: torch.dtype) -> Tensor:
    if not raw.nbytes:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        payload = torch.frombuffer(raw, dtype=dtype)
    # A small frame may lie anywhere in the buffer that it was received in.
    return payload if payload.data_ptr() % min(dtype.itemsize, 8) == 0 else payload.clone()
