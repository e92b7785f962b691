"""The start of a shard on the rank that takes it over from a rank that is gone."""

from __future__ import annotations

import logging
from collections.abc import Set

from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.shards import Shard

_log = logging.getLogger(__name__)


class Takeover:
    """Collects the copies of a shard that live workers hold.

    The shard starts from the newest copy. Later updates by the lost server are lost, and so is the
    optimizer's state. A worker that has lost the server sends its copy first and then its requests,
    which are kept for the start. A rank starts to serve only with at least one copy, and only when
    it has lost all ranks before it: so two ranks don't serve one shard as long as the ranks agree
    on which of them are alive.

    Args:
        shard: number, size and dtype.

    Attributes:
        final: number of the last rendezvous that has ended for any worker.

    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        # Version and values by worker.
        self._copies: dict[int, tuple[int, Tensor]] = {}
        self._kept: dict[tuple[int, Kind], Received] = {}
        self._open_since: float | None = None
        self.final = 0

    def take(self, received: Received) -> None:
        """Take a worker's copy, or keep its request for the start."""
        message, worker = received.message, received.sender
        if message.kind != Kind.HOLD:
            self._kept.pop((worker, message.kind), None)
            self._kept[worker, message.kind] = received
        elif is_copy(received, self.shard) and message.payload is not None:
            # Cloned, since a received payload is a view of a frame.
            self._copies[worker] = message.timestamp, message.payload.clone()
            self.final = max(self.final, message.facts["final"])

    def forget(self, worker: int) -> None:
        """Drop the requests of a worker that is gone. Its copy is still of use."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] != worker}

    def open(self, now: float) -> None:
        """Start to wait for copies: this rank is the successor."""
        if self._open_since is None and self._copies:
            self._open_since = now

    def due(self, limit_s: float) -> float | None:
        """Time at which to start with the received copies; None: not opened."""
        return None if self._open_since is None else self._open_since + limit_s

    def is_over(self, live: Set[int], limit_s: float, now: float) -> bool:
        """Whether all live workers have sent their copies, or the limit has passed."""
        due = self.due(limit_s)
        return due is not None and (live <= self._copies.keys() or now >= due)

    def newest(self) -> tuple[int, Tensor]:
        """Version and values of the newest copy; of equal ones that of the lowest rank."""
        newest = max(self._copies, key=lambda worker: (self._copies[worker][0], -worker))
        return self._copies[newest]

    def kept(self) -> list[Received]:
        """The kept requests, in the order of their arrival."""
        return list(self._kept.values())


def is_copy(received: Received, shard: Shard) -> bool:
    """Whether a HOLD contains a finite copy of the shard."""
    flat, final = received.message.payload, received.message.facts.get("final")
    fits = flat is not None and (flat.dtype, flat.numel()) == shard.form
    if flat is None or not fits or not isinstance(final, int) or not all_finite(flat):
        _log.warning("rank %d holds no copy of shard %d", received.sender, shard.number)
        return False
    return True
