"""Work that goes through collectives in stages, with several chunks of it on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice

from lightning_hier.comm.channel import Pending

Stages = Generator[Sequence[Pending], None, None]
"""The work of one chunk: starts collectives, yields them, and goes on when they are complete.

Every rank's work on a chunk yields equally often, where it has nothing to wait for an empty list:
then all ranks start their collectives in the same order, whatever completes first.
"""

# Chunks on their way at a time: enough to keep the network busy while one is reckoned with.
_ON_THEIR_WAY = 4


class StagedWork:
    """Chunks that go through their stages in turn.

    The order in which collectives are started follows from the chunks alone and not from time, so
    it is the same on all ranks.

    Args:
        chunks: the work of each; begun one after the other.

    """

    def __init__(self, chunks: Iterable[Stages]) -> None:
        self._coming: Iterator[Stages] = iter(chunks)
        self._going: deque[tuple[Stages, Sequence[Pending]]] = deque()
        for chunk in islice(self._coming, _ON_THEIR_WAY):
            self._resume(chunk)

    def finish(self) -> None:
        """Wait until all chunks are through.

        Raises:
            PeerError: a collective failed or ran out of time; names the missing ranks.

        """
        while self._going:
            self._turn()

    def poll(self) -> bool:
        """Go as far as possible without waiting; tell whether all chunks are through."""
        while self._going and all(pending.completed for pending in self._going[0][1]):
            self._turn()
        return not self._going

    def _turn(self) -> None:
        chunk, awaited = self._going.popleft()
        for pending in awaited:
            pending.wait()
        self._resume(chunk)

    def _resume(self, chunk: Stages | None) -> None:
        """Bring a chunk to its next stage; where it has none left, begin the next one."""
        while chunk is not None:
            try:
                self._going.append((chunk, next(chunk)))
            except StopIteration:
                chunk = next(self._coming, None)
            else:
                return


def side_by_side(parts: Iterable[Stages]) -> Stages:
    """Several pieces of work as one; all have the same number of stages."""
    running = list(parts)
    while running:
        awaited: list[Pending] = []
        ended = 0
        for part in running:
            try:
                awaited += next(part)
            except StopIteration:
                ended += 1
        if ended:
            return
        yield awaited
