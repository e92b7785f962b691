"""Counters in shared memory by which devices and node of a group know of each other.

Each word has one writer, so none needs a lock. Eight bytes at a multiple of eight are written and
read whole.
"""

from __future__ import annotations

# Each line has a cache line of its own, so that writers do not slow each other down.
WORDS_OF_LINE = 8
BYTES_OF_LINE = 8 * WORDS_OF_LINE


class _Word:
    """One word of a line, read and written like an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, line: _Line, owner: type[_Line]) -> int:
        return line.words[line.first + self._place]

    def __set__(self, line: _Line, value: int) -> None:
        line.words[line.first + self._place] = value


class _Line:
    def __init__(self, words: memoryview, number: int) -> None:
        """Use line ``number`` of ``words``, a view of 64-bit integers."""
        self.words = words
        self.first = number * WORDS_OF_LINE


class NodeWords(_Line):
    """What the node says: written by the thread that exchanges with the master.

    Attributes:
        begun: pushes begun.
        installed: pushes whose answer has come, so that the replica is new.
        finals: rendezvous after which the replica holds the master's model.
        note_length: bytes of the note on why the node has failed; 0: it has not.

    """

    begun = _Word(0)
    installed = _Word(1)
    finals = _Word(2)
    note_length = _Word(3)


class DeviceWords(_Line):
    """What one device says, and what the node has taken from it.

    Attributes:
        steps: steps made, those without a gradient included.
        added: gradients added to the accumulator.
        adding: 1 while a gradient is being added.
        arrived: the rendezvous that the device has come to.
        settled: the rendezvous after which it has its copy of the model.
        taken: gradients that the node has taken; written by the node.
        met: the last meeting that is over for the device.

    """

    steps = _Word(0)
    added = _Word(1)
    adding = _Word(2)
    arrived = _Word(3)
    settled = _Word(4)
    taken = _Word(5)
    met = _Word(6)
