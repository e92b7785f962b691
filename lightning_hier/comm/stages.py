"""Chunks that pass through several collectives, with several chunks in flight.

A chunk is an iterator, usually a generator, that yields the collectives it has started. With three
stages::

    round       1    2    3    4    5
    chunk 0     a    b    c
    chunk 1          a    b    c
    chunk 2               a    b    c

In a round each chunk in flight advances by one stage, the newest first, so that the network is
busy before the processor is. The order in which collectives start depends on the chunks alone and
not on time, so it is the same on all ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from lightning_hier.comm.channel import Pending
from lightning_hier.comm.profiling import profiler_range

Stages = Iterator[Sequence[Pending]]
"""Work on one chunk: starts collectives, yields them, and resumes when they are complete.

The work on a chunk yields the same number of times on every rank, an empty list where there is
nothing to wait for. An empty list after a collective gives it one more round.
"""


class Due(tuple[Pending, ...]):
    """Collectives, yielded at the same stage on all ranks, that an :class:`OverlapQueue` schedules.

    The queue waits for them at a step that follows from the number of steps alone. It waits for
    collectives in lists as soon as their chunk has its turn.

    Attributes:
        units: weight of the wait. One of 8 units gets eight times the steps of one of 1.

    """

    units = 8


class DueOnHost(Due):
    """Collectives inside hosts: short ones, which leave nearly all steps to those between hosts."""

    units = 1


class Scheduled(Iterator[Sequence[Pending]]):
    """Work on one chunk, as :data:`Stages`, that an :class:`OverlapQueue` can schedule.

    Args:
        stages: the work.
        due: units of the :class:`Due` that it yields, the same on all ranks.

    """

    def __init__(self, stages: Stages, *, due: int) -> None:
        self._stages = stages
        self.due = due

    def __next__(self) -> Sequence[Pending]:
        """Do the next stage, and return the collectives that it has started."""
        return next(self._stages)


class Pipeline:
    """Chunks that pass through their stages in rounds. The first begins with :meth:`run`.

    Args:
        chunks: chunks, started in order.
        at_once: number of chunks started in a round. One is sufficient if rounds follow each other
            without a pause. More are needed for work that advances only at training steps.

    """

    def __init__(self, chunks: Iterable[Stages], *, at_once: int = 1) -> None:
        self._chunks: Iterator[Stages] = iter(chunks)
        self._at_once = at_once
        self._active: list[_Chunk] = []
        self._round: deque[_Chunk] = deque()
        self._waited = 0

    @property
    def finished(self) -> bool:
        """Whether all chunks have passed through all stages, after :meth:`run`."""
        return not self._round

    def run(self, due: int | None = None) -> None:
        """Advance the chunks.

        Args:
            due: units of :class:`Due` since the start to wait for. The run ends before the one
                that exceeds them. None: run to the end.

        Raises:
            PeerError: a collective failed or timed out. The error names the missing ranks.

        """
        while self._round or self._begin_round():
            # Before the chunk is taken, so that the next run begins with it.
            chunk = self._round[0]
            units = chunk.awaited.units if isinstance(chunk.awaited, Due) else 0
            if units and due is not None and self._waited + units > due:
                break
            self._waited += units
            self._round.popleft()
            for pending in chunk.awaited or ():
                pending.wait()
            chunk.awaited = next(chunk.stages, None)

    def abandon(self) -> None:
        """Give up the chunks, and wait until their collectives have failed or completed."""
        for chunk in self._active:
            for pending in chunk.awaited or ():
                # Not pending.wait(), which would wait for the records of missing ranks each time.
                with suppress(RuntimeError):
                    pending.work.wait()
        self._active.clear()
        self._round.clear()

    def _begin_round(self) -> bool:
        """Begin a round; returns whether there is a chunk left for it."""
        # New chunks first: they start collectives, and the older ones wait for theirs.
        new = [_Chunk(stages) for stages in islice(self._chunks, self._at_once)]
        self._active = [*new, *(chunk for chunk in self._active if chunk.awaited is not None)]
        self._round.extend(self._active)
        return bool(self._round)


@dataclass
class _Chunk:
    """A chunk, and the collectives of its last stage, or None after all stages."""

    stages: Stages
    # Empty and not None at the start: a chunk whose first stage has not begun waits for nothing.
    awaited: Sequence[Pending] | None = ()


@dataclass
class _Plan:
    """Distributes the waits for ``due`` units evenly over ``steps`` steps."""

    due: int
    steps: int
    step: int = 0

    @property
    def until_now(self) -> int:
        # From the total, and not step by step, so that no rounding adds up: all are due at the end.
        return self.due * min(self.step, self.steps) // self.steps


class OverlapQueue:
    """Pipelines that advance at training steps and share process groups.

    How far a pipeline advances at a step follows from the number of steps and not from what has
    completed, so the order of all collectives, also of other process groups between two steps, is
    the same on all ranks. Over NCCL, ranks that start collectives of two communicators in different
    orders can deadlock. A step waits for a collective that is due and not complete.

    Other users of the process groups must call :meth:`finish` first.
    """

    def __init__(self) -> None:
        # In the order in which they were added.
        self._plans: dict[Pipeline, _Plan] = {}

    def add(self, chunks: Sequence[Scheduled], *, at_once: int, steps: int) -> Pipeline:
        """Add a pipeline, and run its stages up to the first :class:`Due`.

        Every rank of the groups must add the same pipelines, in the same order, at the same step.

        Args:
            chunks: as in :class:`Pipeline`.
            at_once: as in :class:`Pipeline`.
            steps: number of steps over which the units of all chunks are distributed evenly.

        """
        work = Pipeline(chunks, at_once=at_once)
        self._plans[work] = _Plan(sum(chunk.due for chunk in chunks), steps)
        self._run(work)
        return work

    def step(self) -> None:
        """Advance as planned for the next step. All ranks must count the same steps.

        Raises:
            PeerError: a collective failed or timed out. The error names the missing ranks.

        """
        for work, plan in [*self._plans.items()]:
            plan.step += 1
            self._run(work)

    def _run(self, work: Pipeline) -> None:
        with profiler_range("hier/block/overlap"):
            work.run(self._plans[work].until_now)
        if work.finished:
            del self._plans[work]

    def finish(self, work: Pipeline | None = None) -> None:
        """Finish a pipeline, if it has not finished yet, or all of them.

        All ranks of the groups must finish the same one at the same step.

        Raises:
            PeerError: a collective failed or timed out. The error names the missing ranks.

        """
        for own in [own for own in self._plans if work in (None, own)]:
            own.run()
            del self._plans[own]

    def abandon(self) -> None:
        """Give up all pipelines, and wait until their collectives have failed or completed.

        Collectives that have started could otherwise still write into their tensors.
        """
        for work in self._plans:
            work.abandon()
        self._plans.clear()


def side_by_side(parts: Iterable[Stages]) -> Stages:
    """Combine several chunks with the same number of stages into one.

    It yields lists, also where the chunks yield :class:`Due`, so an :class:`OverlapQueue` does not
    schedule their collectives.
    """
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
