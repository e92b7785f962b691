"""A server's part of a rendezvous: workers that have come are held until all are there."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """A worker that has come to a rendezvous.

    Attributes:
        address: where to reach it.
        number: of the rendezvous, counting from 1.
        timestamp: with which it would push next.

    """

    address: bytes
    number: int
    timestamp: int


class Rendezvous:
    """Who has come, for one block.

    A worker that has come pushes no more until it has been sent the values of all blocks, so the
    others' rounds don't wait for it.

    Attributes:
        arrivals: by worker.
        since: when the first of them came, or when they were last told for whom they wait.

    """

    def __init__(self) -> None:
        self.arrivals: dict[int, Arrival] = {}
        self.since: float | None = None

    def note(self, worker: int, arrival: Arrival, now: float) -> None:
        """Note that a worker has come, or has said so again."""
        self.arrivals[worker] = arrival
        self.since = now if self.since is None else self.since

    def remove(self, worker: int) -> Arrival | None:
        """Forget a worker that is gone, or has gone on."""
        arrival = self.arrivals.pop(worker, None)
        if not self.arrivals:
            self.since = None
        return arrival

    def holds(self, worker: int, timestamp: int) -> bool:
        """Whether what a worker said with a timestamp was before it came here."""
        arrival = self.arrivals.get(worker)
        return arrival is not None and timestamp < arrival.timestamp

    def absent(self, live: Set[int]) -> set[int]:
        """Workers that have not come, or only to an earlier one than the others."""
        number = self.number
        here = {worker for worker, one in self.arrivals.items() if one.number == number}
        return set(live) - here

    @property
    def number(self) -> int:
        """Of the rendezvous that is waited for; 0: of none."""
        return max((one.number for one in self.arrivals.values()), default=0)

    @property
    def timestamp(self) -> int:
        """The newest with which one of the workers would go on."""
        return max((one.timestamp for one in self.arrivals.values()), default=0)

    def disperse(self, number: int) -> list[Arrival]:
        """Forget those that have come to a rendezvous, or an earlier one, and return them."""
        ended = [worker for worker, one in self.arrivals.items() if one.number <= number]
        return [one for worker in sorted(ended) if (one := self.remove(worker)) is not None]
