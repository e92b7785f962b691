"""The start of a block on the rank that takes it over from one that is gone."""

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
    """What one worker holds of a block.

    Attributes:
        timestamp: version of the values.
        final: number of the last rendezvous that has ended for this worker; 0: none has.
        flat: the values.

    """

    timestamp: int
    final: int
    flat: Tensor


class Takeover:
    """Collects the copies that live workers hold of a block.

    The newest of them is where the block goes on. Its server's work after that version is lost, and
    so is the optimizer's state. Workers that have lost sight of the server send their copy first
    and then speak to the successor as they did to the server; this is kept for the start. Without a
    copy there is no start, and a rank starts only when it has itself lost the ranks before it: so
    two ranks don't serve one block as long as ranks agree on who is there.

    Args:
        block: what it is.

    """

    def __init__(self, block: ParameterBlock) -> None:
        self.block = block
        self._copies: dict[int, Copy] = {}
        self._kept: dict[tuple[int, Kind], Received] = {}
        self._open_since: float | None = None

    def take(self, received: Received) -> None:
        """Take a worker's copy, or keep what is for the server that will be."""
        message, worker = received.message, received.sender
        if message.kind != Kind.HOLD:
            self._kept.pop((worker, message.kind), None)
            self._kept[worker, message.kind] = received
            return
        copy = read_copy(received, self.block)
        if copy is not None:
            self._copies[worker] = copy

    def forget(self, worker: int) -> None:
        """Expect nothing more of a worker that is gone. The copy that it has sent is as good."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] != worker}

    def open(self, now: float) -> None:
        """Begin to wait for copies: this rank is the successor."""
        if self._open_since is None and self._copies:
            self._open_since = now

    def due(self, limit_s: float) -> float | None:
        """When to start with what copies there are; None: not yet opened."""
        return None if self._open_since is None else self._open_since + limit_s

    def is_over(self, live: Set[int], limit_s: float, now: float) -> bool:
        """Whether all live workers have sent their copies, or the limit has passed."""
        due = self.due(limit_s)
        return due is not None and (live <= self._copies.keys() or now >= due)

    def newest(self) -> Copy:
        """The copy to start from; of equal ones that of the lowest rank."""
        newest = max(self._copies, key=lambda worker: (self._copies[worker].timestamp, -worker))
        return self._copies[newest]

    @property
    def final(self) -> int:
        """Number of the last rendezvous that has ended for any worker."""
        return max(copy.final for copy in self._copies.values())

    def kept(self) -> list[Received]:
        """What has come for the server, in the order in which it came."""
        return list(self._kept.values())


def read_copy(received: Received, block: ParameterBlock) -> Copy | None:
    """The copy in a HOLD; None if it is none of this block."""
    message = received.message
    flat, final = message.payload, message.facts.get("final")
    fits = flat is not None and (flat.dtype, flat.numel()) == (block.dtype, block.size)
    if flat is None or not fits or not isinstance(final, int) or not all_finite(flat):
        _log.warning("rank %d holds no copy of block %d", received.sender, block.number)
        return None
    return Copy(message.timestamp, final, flat.clone())
