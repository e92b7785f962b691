"""A device's sum of gradients, which its node takes (eq. 3): none is lost or taken twice."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_hier.parameter_server.two_stage.counters import DeviceCounters
from lightning_hier.parameter_server.two_stage.shared_file import ByteLock


@dataclass(frozen=True)
class Taken:
    """Result of taking the sum of one accumulator.

    Attributes:
        count: gradients in the sum.
        lost: gradients that were dropped because their device died during an addition.

    """

    count: int
    lost: int = 0


class Accumulator:
    """One device's sum, in shared memory.

    A lock makes :meth:`add` and :meth:`take` exclude each other for a pass or two over memory. No
    thread waits for the network while it holds the lock. There is one sum for each device, and not
    one for the node, because two devices that add to the same floats at once would lose gradients.
    A second sum for each device would cost the size of the model, to avoid a short wait once a
    push.

    A device that dies during an addition leaves ``adding`` set. The sum then holds a part of its
    last gradient, so the whole sum is dropped.

    Args:
        total: the sum, 1-D.
        present: for each parameter a byte, 1 if the sum has a gradient of it.
        counters: of the device.
        lock: shared by device and node.

    """

    def __init__(
        self, total: Tensor, present: Tensor, counters: DeviceCounters, lock: ByteLock
    ) -> None:
        self._total = total
        self._present = present
        self._counters = counters
        self._lock = lock

    @property
    def pending(self) -> int:
        """Number of gradients that have been added and not taken."""
        return self._counters.added - self._counters.taken

    def add(self, gradient: Tensor, present: Tensor, limit_s: float) -> bool:
        """Add a gradient. Only the device may call it.

        Args:
            gradient: 1-D, zero where a parameter has none.
            present: mark of each parameter with a gradient.
            limit_s: limit of the wait for the lock, in seconds.

        Returns:
            False, with nothing changed, if the limit has passed.

        """
        with self._lock.locked(limit_s) as locked:
            if locked:
                counters = self._counters
                counters.adding = 1
                if counters.added == counters.taken:
                    self._total.copy_(gradient)  # the sum that the node has taken is still there
                    self._present.copy_(present)
                else:
                    self._total.add_(gradient)
                    self._present.bitwise_or_(present)
                counters.added += 1
                counters.adding = 0
            return locked

    def take(self, out: Tensor, present: Tensor, *, fresh: bool, limit_s: float) -> Taken | None:
        """Write (``fresh``) or add the sum to ``out``. Only the node may call it.

        Parameters with a gradient in the sum are marked in ``present``. Returns None, with nothing
        changed, if the device held the lock for ``limit_s`` seconds: it was stopped during an
        addition.
        """
        with self._lock.locked(limit_s) as locked:
            if not locked:
                return None
            counters = self._counters
            count = self.pending
            if counters.adding:
                counters.adding = 0
                counters.taken = counters.added
                return Taken(0, lost=count)
            if count:
                (out.copy_ if fresh else out.add_)(self._total)
                present.bitwise_or_(self._present)
                counters.taken = counters.added
            return Taken(count)
