"""Sum of the gradients of one device, in the shared memory of its node."""

from __future__ import annotations

from ctypes import Structure, c_int64

from torch import Tensor

from lightning_hier.parameter_server.two_stage.shared_memory import ByteLock


class DeviceCounters(Structure):
    """Counters of one device, in shared memory. They are written by the device, unless noted.

    Attributes:
        steps: steps, including those without a gradient.
        added: gradients added to the accumulator.
        arrived: rendezvous at which the device has arrived.
        finished: rendezvous after which it has copied the model.
        taken: gradients that the node has taken; written by the node.
        collectives_done: number of the last collective that has ended for the device.

    """

    steps: int
    added: int
    arrived: int
    finished: int
    taken: int
    collectives_done: int
    _fields_ = tuple((name, c_int64) for name in __annotations__)


class Accumulator:
    """Sum of the gradients of one device, in shared memory.

    A lock makes :meth:`add` and :meth:`take` exclude each other for a pass or two over memory. No
    thread waits for the network while it holds the lock. There is one sum for each device, and not
    one for the node, because two devices that add to the same floats at once would lose gradients.
    A second sum for each device would cost the size of the model, to avoid a short wait once a
    push.

    Args:
        total: the sum, 1-D.
        present: a byte for each parameter, 1 if the sum contains a gradient of it.
        counters: counters of the device.
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
            gradient: 1-D, zero if a parameter has none.
            present: as in the constructor, for this gradient.
            limit_s: limit of the wait for the lock, in seconds.

        Returns:
            False, with nothing changed, if the limit has passed.

        """
        with self._lock.locked(limit_s) as locked:
            if locked:
                counters = self._counters
                if counters.added == counters.taken:
                    # Replaces the sum that the node has taken, which saves a pass that clears it.
                    self._total.copy_(gradient)
                    self._present.copy_(present)
                else:
                    self._total.add_(gradient)
                    self._present.bitwise_or_(present)
                counters.added += 1
            return locked

    def take(self, out: Tensor, present: Tensor, *, fresh: bool, limit_s: float) -> int:
        """Write (``fresh``) or add the sum to ``out``. Only the node may call it.

        Parameters with a gradient in the sum are marked in ``present``. Returns the number of
        gradients in the sum: 0, with nothing changed, if there are none or if the device held the
        lock for ``limit_s`` seconds, because it was stopped during an addition.
        """
        with self._lock.locked(limit_s) as locked:
            if not locked:
                return 0
            counters = self._counters
            count = self.pending
            if count:
                (out.copy_ if fresh else out.add_)(self._total)
                present.bitwise_or_(self._present)
                counters.taken = counters.added
            return count
