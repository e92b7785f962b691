"""Workers that wait for one block: for a newer version, or at a rendezvous of all workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.server_loop import RETRY_S, Replies


@dataclass(frozen=True)
class _Pull:
    """A request for a version newer than ``timestamp``, and the address of the worker."""

    address: bytes
    timestamp: int


class PendingPulls:
    """Requests for a newer version of one block. At most one version is queued for a worker.

    On a slow link a second copy would delay the first. So a repeated request is ignored while an
    answer to it is queued, and a newer version is sent only when the older one has left the queue.

    Args:
        block: number of the block.
        replies: port of the rank.

    Attributes:
        retry_at: time at which to call :meth:`answer` again, for workers whose queue was full;
            infinite: there is none.

    """

    def __init__(self, block: int, replies: Replies) -> None:
        self._block = block
        self._replies = replies
        self._pulls: dict[int, _Pull] = {}
        self._sent: dict[int, int] = {}
        self.retry_at = math.inf

    def add(self, worker: int, address: bytes, timestamp: int) -> None:
        """Note a request of a worker for a version newer than ``timestamp``."""
        if self._sent.get(worker, -1) <= timestamp or not self._replies.is_sending(
            address, Kind.BLOCK, self._block
        ):
            self._pulls[worker] = _Pull(address, timestamp)

    def remove(self, worker: int) -> None:
        """Forget a worker that is gone, or waits at a rendezvous instead."""
        self._pulls.pop(worker, None)

    def answer(self, timestamp: int, write: Callable[[], Message], now: float) -> None:
        """Send a version to the workers that wait for it (line 3).

        A worker gets a version only for a request, so the queue to a slow worker does not grow. A
        worker whose answer is lost repeats its request.

        Args:
            timestamp: of the version.
            write: makes the message.
            now: the time, in seconds.

        """
        self.retry_at = math.inf
        for worker, pull in sorted(self._pulls.items()):
            if pull.timestamp >= timestamp:
                continue
            queued = self._replies.is_sending(pull.address, Kind.BLOCK, self._block)
            if not queued and self._replies.send(pull.address, write()):
                del self._pulls[worker]
                self._sent[worker] = timestamp
            else:
                self.retry_at = now + RETRY_S

    def unanswered(self, timestamp: int) -> list[bytes]:
        """Addresses of the workers that wait for a version newer than ``timestamp``."""
        return [pull.address for pull in self._pulls.values() if pull.timestamp >= timestamp]


@dataclass(frozen=True)
class Arrival:
    """A worker that has arrived at a rendezvous.

    Attributes:
        address: of the worker.
        number: of the rendezvous, counting from 1.
        timestamp: of its next push.

    """

    address: bytes
    number: int
    timestamp: int


class Rendezvous:
    """The workers that have arrived at a rendezvous, for one block.

    A worker that has arrived pushes nothing until it has received all blocks, so rounds go on
    without it.

    Attributes:
        arrivals: by worker.
        since: time of the first arrival, or of the last report of missing workers; infinite: there
            is no arrival.

    """

    def __init__(self) -> None:
        self.arrivals: dict[int, Arrival] = {}
        self.since = math.inf

    def add(self, worker: int, arrival: Arrival, now: float) -> None:
        """Note an arrival, or a repeated one."""
        self.arrivals[worker] = arrival
        self.since = min(self.since, now)

    def remove(self, worker: int) -> Arrival | None:
        """Forget a worker that is gone, or has gone on."""
        arrival = self.arrivals.pop(worker, None)
        if not self.arrivals:
            self.since = math.inf
        return arrival

    def is_after(self, worker: int, timestamp: int) -> bool:
        """Whether a worker has arrived since it sent a message with a timestamp."""
        arrival = self.arrivals.get(worker)
        return arrival is not None and timestamp < arrival.timestamp

    def absent(self, live: Set[int]) -> set[int]:
        """Workers that have not arrived, or only at an earlier rendezvous than the others."""
        number = self.number
        arrived = {worker for worker, one in self.arrivals.items() if one.number == number}
        return set(live) - arrived

    @property
    def number(self) -> int:
        """Number of the rendezvous; 0: no worker has arrived."""
        return max((one.number for one in self.arrivals.values()), default=0)

    @property
    def timestamp(self) -> int:
        """Largest timestamp of the workers' next pushes."""
        return max((one.timestamp for one in self.arrivals.values()), default=0)

    def end(self, number: int) -> list[Arrival]:
        """Remove and return the arrivals at a rendezvous and at earlier ones."""
        ended = [worker for worker, one in self.arrivals.items() if one.number <= number]
        return [one for worker in sorted(ended) if (one := self.remove(worker)) is not None]
