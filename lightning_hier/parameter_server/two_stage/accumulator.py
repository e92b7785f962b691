"""A device's sum of gradients, which its node takes (eq. 3): none is lost or taken twice."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_hier.parameter_server.two_stage.counters import DeviceCounters
from lightning_hier.parameter_server.two_stage.shared_file import ByteLock


@dataclass(frozen=True)
class Taken:
    """What a node has got from one accumulator.

    Attributes:
        count: gradients in the sum.
        lost: gradients thrown waiting, because their device died in the middle of an addition.

    """

    count: int
    lost: int = 0


class Accumulator:
    """One device's sum, in shared memory.

    A short lock makes an addition and a taking exclude each other, each a pass or two over memory.
    Nobody holds it while it waits for the network. There is one sum for each device, not one for
    the node, because two devices that add to the same floats at once would lose gradients; and not
    two for each device, since a device meets the node here once a push, for a moment, and a second
    one would cost the size of the model again.

    A device that dies while it adds leaves ``adding`` set. Part of its last gradient is in the sum
    then and part is not, so the sum is thrown waiting whole.

    Args:
        total: the sum, 1-D.
        present: for each parameter whether a gradient of the sum has it; bytes, 0 or 1.
        counters: of the device.
        lock: of device and node.

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
        """Gradients that have been added and not taken."""
        return self._counters.added - self._counters.taken

    def add(self, gradient: Tensor, present: Tensor, limit_s: float) -> bool:
        """Add a gradient. The device alone may call it.

        Args:
            gradient: 1-D, zero where a parameter has none.
            present: which parameters have one.
            limit_s: the node may hold the lock for so many seconds.

        Returns:
            False, with nothing changed, if it held the lock longer.

        """
        with self._lock.held(limit_s) as locked:
            if locked:
                counters = self._counters
                counters.adding = 1
                if counters.added == counters.taken:
                    self._total.copy_(gradient)  # what the node has taken is still in there
                    self._present.copy_(present)
                else:
                    self._total.add_(gradient)
                    self._present.bitwise_or_(present)
                counters.added += 1
                counters.adding = 0
            return locked

    def take(self, out: Tensor, present: Tensor, *, fresh: bool, limit_s: float) -> Taken | None:
        """Move the sum to ``out``: written if ``fresh``, otherwise added. The node alone may call.

        Parameters that have a gradient in it are marked in ``present``.

        Returns None, with nothing changed, if the device held the lock for ``limit_s`` seconds: it
        was stopped in the middle of an addition.
        """
        with self._lock.held(limit_s) as locked:
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
