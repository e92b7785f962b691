"""Counters in shared memory that synchronise the devices and the node of a group.

Each counter has one writer, so none needs a lock. Eight aligned bytes are written and read whole.
"""

from __future__ import annotations

# Each writer has a cache line of its own, so that writers do not slow each other down.
COUNTERS_PER_LINE = 8
BYTES_PER_LINE = 8 * COUNTERS_PER_LINE


class _Counter:
    """One counter of a line, read and written as an attribute."""

    def __init__(self, position: int) -> None:
        self._position = position

    def __get__(self, line: _CacheLine, owner: type[_CacheLine]) -> int:
        return line.counters[line.first + self._position]

    def __set__(self, line: _CacheLine, value: int) -> None:
        line.counters[line.first + self._position] = value


class _CacheLine:
    def __init__(self, counters: memoryview, number: int) -> None:
        """Use line ``number`` of ``counters``, a view of 64-bit integers."""
        self.counters = counters
        self.first = number * COUNTERS_PER_LINE


class NodeCounters(_CacheLine):
    """Counters of the node, written by the thread that exchanges with the master.

    Attributes:
        begun: pushes begun.
        installed: pushes whose answer is in the replica.
        finals: rendezvous after which the replica holds the master's model.
        failure_bytes: length of the text of the node's failure; 0: it has not failed.

    """

    begun = _Counter(0)
    installed = _Counter(1)
    finals = _Counter(2)
    failure_bytes = _Counter(3)


class DeviceCounters(_CacheLine):
    """Counters of one device.

    Attributes:
        steps: steps, including those without a gradient.
        added: gradients added to the accumulator.
        adding: 1 while a gradient is being added.
        arrived: rendezvous at which the device has arrived.
        finished: rendezvous after which it has copied the model.
        taken: gradients that the node has taken; written by the node.
        collectives_done: number of the last live-rank collective that has ended for the device.

    """

    steps = _Counter(0)
    added = _Counter(1)
    adding = _Counter(2)
    arrived = _Counter(3)
    finished = _Counter(4)
    taken = _Counter(5)
    collectives_done = _Counter(6)
