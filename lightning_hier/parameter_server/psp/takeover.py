"""The start of a block on the rank that takes it over from a rank that is gone."""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass

from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.plan import ParameterBlock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Copy:
    """One worker's copy of a block.

    Attributes:
        timestamp: version of the values.
        final: number of the last rendezvous that has ended for this worker; 0: none.
        flat: the values.

    """

    timestamp: int
    final: int
    flat: Tensor


class Takeover:
    """Collects the copies of a block that live workers hold.

    The block starts from the newest copy. Later updates by the lost server are lost, and so is the
    optimizer's state. A worker that has lost the server sends its copy first and then its requests,
    which are kept for the start. A rank starts to serve only with at least one copy, and only when
    it has lost all ranks before it: so two ranks don't serve one block as long as the ranks agree
    on which of them are alive.

    Args:
        block: number, size and dtype.

    """

    def __init__(self, block: ParameterBlock) -> None:
        self.block = block
        self._copies: dict[int, Copy] = {}
        self._kept: dict[tuple[int, Kind], Received] = {}
        self._open_since: float | None = None

    def take(self, received: Received) -> None:
        """Take a worker's copy, or keep its request for the start."""
        message, worker = received.message, received.sender
        if message.kind != Kind.HOLD:
            self._kept.pop((worker, message.kind), None)
            self._kept[worker, message.kind] = received
            return
        copy = read_copy(received, self.block)
        if copy is not None:
            self._copies[worker] = copy

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

    def newest(self) -> Copy:
        """The newest copy; of equal ones that of the lowest rank."""
        newest = max(self._copies, key=lambda worker: (self._copies[worker].timestamp, -worker))
        return self._copies[newest]

    @property
    def final(self) -> int:
        """Number of the last rendezvous that has ended for any worker."""
        return max(copy.final for copy in self._copies.values())

    def kept(self) -> list[Received]:
        """The kept requests, in the order of their arrival."""
        return list(self._kept.values())


def read_copy(received: Received, block: ParameterBlock) -> Copy | None:
    """The copy in a HOLD; None if it does not fit the block or is not finite."""
    message = received.message
    flat, final = message.payload, message.facts.get("final")
    fits = flat is not None and (flat.dtype, flat.numel()) == block.form
    if flat is None or not fits or not isinstance(final, int) or not all_finite(flat):
        _log.warning("rank %d holds no copy of block %d", received.sender, block.number)
        return None
    return Copy(message.timestamp, final, flat.clone())
