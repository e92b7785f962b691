"""Workers that wait for a newer version of a block, and what is on its way to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.replies import RETRY_S, Replies


@dataclass(frozen=True)
class _Waiting:
    """A worker that waits for a version newer than ``timestamp``, and where to reach it."""

    address: bytes
    timestamp: int


class PendingPulls:
    """Who waits for a version of one block. To nobody more than one version is queued.

    On a slow line a second copy would hold up the first: a worker that asks again while an answer
    is queued gets that one, and one that wants a newer version gets it when the older has left.

    Args:
        block: number of the block.
        replies: port of the rank.

    """

    def __init__(self, block: int, replies: Replies) -> None:
        self._block = block
        self._replies = replies
        self._waiting: dict[int, _Waiting] = {}
        self._sent: dict[int, int] = {}
        self._retry_at: float | None = None

    def note(self, worker: int, address: bytes, timestamp: int) -> None:
        """A worker asks for a version newer than ``timestamp``."""
        if self._sent.get(worker, -1) > timestamp and self._is_sending(address):
            return
        self._waiting[worker] = _Waiting(address, timestamp)

    def forget(self, worker: int) -> None:
        """A worker is gone, or waits at a rendezvous instead."""
        self._waiting.pop(worker, None)

    def answer(self, timestamp: int, write: Callable[[], Message], now: float) -> None:
        """Send a version to those that wait for one as new as this (line 3).

        Sent to those that have asked by a push, and not to all: the queue to a slow worker does not
        grow. A worker that misses the answer asks again.

        Args:
            timestamp: of the version.
            write: makes the message.
            now: in seconds.

        """
        self._retry_at = None
        for worker, waiting in sorted(self._waiting.items()):
            if waiting.timestamp >= timestamp:
                continue
            queued = self._is_sending(waiting.address)
            if not queued and self._replies.send(waiting.address, write()):
                del self._waiting[worker]
                self._sent[worker] = timestamp
            else:
                self._retry_at = now + RETRY_S

    def deadline(self) -> float | None:
        """When to call :meth:`answer` again, for those that could not be sent anything."""
        return self._retry_at

    def unanswered(self, timestamp: int) -> list[bytes]:
        """Addresses of those for which a version is not new enough."""
        return [one.address for one in self._waiting.values() if one.timestamp >= timestamp]

    def _is_sending(self, address: bytes) -> bool:
        return self._replies.is_sending(address, Kind.BLOCK, self._block)
