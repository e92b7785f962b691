"""Work that goes through collectives in stages, with several chunks of it on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from lightning_hier.comm.channel import Pending

Stages = Generator[Sequence[Pending], None, None]
"""The work of one chunk: starts collectives, yields them, and goes on when they are complete.

Every rank's work on a chunk yields equally often, where it has nothing to wait for an empty list:
then all ranks start their collectives in the same order, whatever completes first. Where a
collective takes long, an empty list before it leaves it a round more.
"""


class StagedWork:
    """Chunks that go through their stages in rounds; every round begins new ones.

    In a round each chunk on its way goes on by one stage, the youngest first: what keeps the
    network busy is started before what keeps the processor busy. The order in which collectives are
    started follows from the chunks alone and not from time, so it is the same on all ranks.

    Args:
        chunks: the work of each; begun one after the other.
        at_once: begun in a round. One keeps all stages busy with chunks that follow each other
            closely; more suit work that is only looked after from time to time.

    """

    def __init__(self, chunks: Iterable[Stages], *, at_once: int = 1) -> None:
        self._coming: Iterator[Stages] = iter(chunks)
        self._at_once = at_once
        self._going: list[_OnItsWay] = []
        self._round: deque[_OnItsWay] = deque()
        self._begin_round()

    def finish(self) -> None:
        """Wait until all chunks are through.

        Raises:
            PeerError: a collective failed or ran out of time; names the missing ranks.

        """
        while self._round:
            self._turn()

    def poll(self) -> bool:
        """Go as far as possible without waiting; tell whether all chunks are through."""
        while self._round and all(pending.completed for pending in self._round[0].awaited):
            self._turn()
        return not self._round

    def _turn(self) -> None:
        self._round.popleft().go_on()
        if not self._round:
            self._begin_round()

    def _begin_round(self) -> None:
        """Begin new chunks, then let those that were on their way have a turn each."""
        while not self._round:
            older = [chunk for chunk in self._going if not chunk.through]
            new = [_OnItsWay(chunk) for chunk in islice(self._coming, self._at_once)]
            if not older and not new:
                return
            self._going = [*new, *older]
            self._round.extend(older)


class QueuedWork:
    """Work in a :class:`WorkQueue`; begun when its turn comes."""

    def __init__(self, chunks: Iterable[Stages], at_once: int) -> None:
        self._chunks = chunks
        self._at_once = at_once

    @cached_property
    def begun(self) -> StagedWork:
        """The work, with its first stages begun."""
        return StagedWork(self._chunks, at_once=self._at_once)


class WorkQueue:
    """Work that is looked after from time to time, and shares its process groups.

    A piece of work begins when all before it are through: so the order of its collectives among
    those of other pieces follows from the order in which they were added, and not from time.
    Whatever else uses the groups must call :meth:`finish` before.
    """

    def __init__(self) -> None:
        self._waiting: deque[QueuedWork] = deque()

    def add(self, chunks: Iterable[Stages], *, at_once: int = 1) -> QueuedWork:
        """Add work, as :class:`StagedWork` takes it, and start what can be started of it.

        Every rank of the groups must add the same, in the same order.
        """
        work = QueuedWork(chunks, at_once)
        self._waiting.append(work)
        self.poll()
        return work

    def poll(self) -> None:
        """Go as far as possible without waiting."""
        while self._waiting and self._waiting[0].begun.poll():
            self._waiting.popleft()

    def finish(self, last: QueuedWork | None = None) -> None:
        """Wait until all work up to ``last``, or all that there is, is through.

        Raises:
            PeerError: a collective failed or ran out of time; names the missing ranks.

        """
        while self._waiting and (last is None or last in self._waiting):
            self._waiting[0].begun.finish()
            self._waiting.popleft()


class _OnItsWay:
    """A chunk between two stages; made by going through the first one."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self.through = False
        self.awaited: Sequence[Pending] = ()
        self.go_on()

    def go_on(self) -> None:
        """Wait for what the last stage has started, and go through the next one."""
        for pending in self.awaited:
            pending.wait()
        self.awaited = ()
        try:
            self.awaited = next(self._stages)
        except StopIteration:
            self.through = True


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
