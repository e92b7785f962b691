"""Follows a job through its diary: who runs now, how far it is, when it is at work again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability import diary
from benchmarks.reliability.diary import Entry


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks of a job.

    Attributes:
        starts: of each rank, in order of rank.
        steps: that rank 0 has made since.

    """

    starts: tuple[Entry, ...]
    steps: tuple[Entry, ...]

    @property
    def begun_at(self) -> int:
        """Steps of the run when it began: those of the checkpoint that it goes on from."""
        return self.starts[0].steps

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.starts[0].world

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its processes, in order of rank."""
        return tuple(start.pid for start in self.starts)

    def first_step_after(self, time_s: float) -> Entry | None:
        """Its first step after a moment; None where there is none yet."""
        return next((step for step in self.steps if step.time_s > time_s), None)


def attempts(folder: Path) -> list[Attempt]:
    """All starts of a job that came so far that rank 0 trained, in their order."""
    entries = diary.read(folder)
    found = []
    for first in (entry for entry in entries if entry.event == "start" and entry.rank == 0):
        # The other ranks of this start are those nearest in time that rank 0 met.
        starts = [first]
        for rank in range(1, first.world):
            own = [e for e in entries if (e.event, e.rank) == ("start", rank)]
            nearest = min(own, key=lambda e: abs(e.time_s - first.time_s), default=None)
            if nearest is not None:
                starts.append(nearest)
        steps = [e for e in entries if e.event == "step" and e.pid == first.pid]
        if len(starts) == first.world:
            found.append(Attempt(tuple(starts), tuple(steps)))
    return found


def latest(folder: Path) -> Attempt | None:
    """The last start of a job, or None before the first."""
    found = attempts(folder)
    return found[-1] if found else None


def reached(folder: Path, attempt: Attempt) -> int:
    """Steps of the run at the last step that an attempt has made by now."""
    steps = [e for e in diary.read(folder) if e.event == "step" and e.pid == attempt.pids[0]]
    return steps[-1].steps if steps else attempt.begun_at
