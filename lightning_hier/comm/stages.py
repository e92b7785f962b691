"""Work that goes through collectives in stages, with several chunks of it on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from lightning_hier.comm.channel import Pending

Stages = Generator[Sequence[Pending], None, None]
"""The work of one chunk: starts collectives, yields them, and goes on when they are complete.

Every rank's work on a chunk yields equally often, where it has nothing to wait for an empty list:
then all ranks start their collectives in the same order, whatever completes first. Where a
collective takes long, an empty list before it leaves it a round more.
"""


class Due(tuple[Pending, ...]):
    """Collectives, yielded at the same stage on all ranks, whose end a :class:`OverlapQueue` plans.

    It waits for them at a step that follows from the number of steps alone. Others, in lists, it
    waits for as soon as their turn comes.
    """


class Pipeline:
    """Chunks that go through their stages in rounds; every round begins new ones.

    In a round each chunk on its way goes on by one stage, the youngest first: what keeps the
    network busy is started before what keeps the processor busy. The order in which collectives are
    started follows from the chunks alone and not from time, so it is the same on all ranks.

    Args:
        chunks: the work of each; begun one after the other.
        at_once: begun in a round. One keeps all stages busy with chunks that follow each other
            closely; more suit work that goes on at steps of training only.

    """

    def __init__(self, chunks: Iterable[Stages], *, at_once: int = 1) -> None:
        self._coming: Iterator[Stages] = iter(chunks)
        self._at_once = at_once
        self._going: list[_OnItsWay] = []
        self._round: deque[_OnItsWay] = deque()
        self._begin_round()

    @property
    def through(self) -> bool:
        """Whether all chunks are through."""
        return not self._round

    def finish(self) -> int:
        """Wait until all chunks are through; returns how many :class:`Due` were waited for.

        Raises:
            PeerError: a collective failed or ran out of time; names the missing ranks.

        """
        return self.advance(None)

    def advance(self, due: int | None) -> int:
        """Go on until one more than ``due`` :class:`Due` would be waited for; None: to the end.

        Returns how many were waited for.

        Raises:
            PeerError: as :meth:`finish`.

        """
        waited = 0
        while self._round:
            planned = isinstance(self._round[0].awaited, Due)
            if planned and due is not None and waited >= due:
                break
            waited += planned
            self._turn()
        return waited

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


class QueuedPipeline:
    """Work in a :class:`OverlapQueue`; begun when its turn comes."""

    def __init__(self, chunks: Iterable[Stages], at_once: int) -> None:
        self._chunks = chunks
        self._at_once = at_once

    @cached_property
    def begun(self) -> Pipeline:
        """The work, with its first stages begun."""
        return Pipeline(self._chunks, at_once=self._at_once)


@dataclass(frozen=True)
class _Plan:
    """So many :class:`Due` are waited for, evenly over so many steps after ``begin``."""

    due: int
    steps: int
    begin: int

    def until(self, step: int) -> int:
        return self.due * min(step - self.begin, self.steps) // self.steps


class OverlapQueue:
    """Work that goes on at the steps of training, and shares its process groups.

    A piece of work begins when all before it are through. How far it goes at a step follows from
    the number of steps and not from what has completed: so the order of all collectives, those of
    other process groups between two steps included, is the same on all ranks. Over NCCL ranks that
    start collectives of two communicators in differing order can wait for each other without an
    end. Where an end that is due has not come yet, the step waits for it.

    Whatever else uses the groups must call :meth:`finish` before.
    """

    def __init__(self) -> None:
        self._waiting: deque[QueuedPipeline] = deque()
        self._begin_anew()

    def add(
        self, chunks: Iterable[Stages], *, at_once: int, due: int, steps: int
    ) -> QueuedPipeline:
        """Add work, as :class:`Pipeline` takes it, and start what waits for nothing planned.

        Every rank of the groups must add the same, in the same order, at the same step.

        Args:
            chunks: the work.
            at_once: as in :class:`Pipeline`.
            due: how many :class:`Due` all chunks yield.
            steps: over how many steps they are spread evenly.

        """
        work = QueuedPipeline(chunks, at_once)
        self._waiting.append(work)
        self._plans.append(_Plan(due, steps, self._step))
        self._go_on()
        return work

    def step(self) -> None:
        """Go on as far as is planned for the next step. All ranks must count the same steps.

        Raises:
            PeerError: a collective failed or ran out of time; names the missing ranks.

        """
        self._step += 1
        self._go_on()

    def finish(self, last: QueuedPipeline | None = None) -> None:
        """Wait until all work up to ``last``, or all that there is, is through.

        Raises:
            PeerError: a collective failed or ran out of time; names the missing ranks.

        """
        while self._waiting and (last is None or last in self._waiting):
            self._waited += self._waiting[0].begun.finish()
            self._waiting.popleft()
        if not self._waiting:
            self._begin_anew()

    def _go_on(self) -> None:
        while self._waiting:
            planned = sum(plan.until(self._step) for plan in self._plans)
            begun = self._waiting[0].begun
            self._waited += begun.advance(planned - self._waited)
            if not begun.through:
                return
            self._waiting.popleft()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._plans: list[_Plan] = []
        self._step = self._waited = 0


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
