"""Counters in shared memory by which devices and node of a group know of each other.

Each word has one writer, so none needs a lock. Eight bytes at a multiple of eight are written and
read whole.
"""

from __future__ import annotations

# Each line has a cache line of its own, so that writers do not slow each other down.
COUNTERS_PER_LINE = 8
BYTES_PER_LINE = 8 * COUNTERS_PER_LINE


class _Counter:
    """One word of a line, read and written like an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, line: _CacheLine, owner: type[_CacheLine]) -> int:
        return line.counters[line.first + self._place]

    def __set__(self, line: _CacheLine, value: int) -> None:
        line.counters[line.first + self._place] = value


class _CacheLine:
    def __init__(self, counters: memoryview, number: int) -> None:
        """Use line ``number`` of ``counters``, a view of 64-bit integers."""
        self.counters = counters
        self.first = number * COUNTERS_PER_LINE


class NodeCounters(_CacheLine):
    """What the node says: written by the thread that exchanges with the master.

    Attributes:
        begun: pushes begun.
        installed: pushes whose answer has come, so that the replica is new.
        finals: rendezvous after which the replica holds the master's model.
        note_length: bytes of the note on why the node has failed; 0: it has not.

    """

    begun = _Counter(0)
    installed = _Counter(1)
    finals = _Counter(2)
    note_length = _Counter(3)


class DeviceCounters(_CacheLine):
    """What one device says, and what the node has taken from it.

    Attributes:
        steps: steps made, those without a gradient included.
        added: gradients added to the accumulator.
        adding: 1 while a gradient is being added.
        arrived: the rendezvous that the device has come to.
        finished: the rendezvous after which it has its copy of the model.
        taken: gradients that the node has taken; written by the node.
        collectives_done: the last meeting that is over for the device.

    """

    steps = _Counter(0)
    added = _Counter(1)
    adding = _Counter(2)
    arrived = _Counter(3)
    finished = _Counter(4)
    taken = _Counter(5)
    collectives_done = _Counter(6)
