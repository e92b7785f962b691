"""Progress of a job from its event log: its starts, processes and steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability import event_log
from benchmarks.reliability.event_log import Entry


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks of a job.

    Attributes:
        starts: start of each rank, in order of rank.
        steps: steps of rank 0 after this start.

    """

    starts: tuple[Entry, ...]
    steps: tuple[Entry, ...]

    @property
    def begun_at(self) -> int:
        """Steps of the run at the start: those of the checkpoint from which the job resumed."""
        return self.starts[0].steps

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.starts[0].world

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of the ranks, in order of rank."""
        return tuple(start.pid for start in self.starts)

    def first_step_after(self, time_s: float) -> Entry | None:
        """Return the first step after ``time_s``, or None."""
        return next((step for step in self.steps if step.time_s > time_s), None)


def attempts(folder: Path) -> list[Attempt]:
    """Return all starts of a job in which all ranks started to train, in order."""
    entries = event_log.read(folder)
    complete = []
    for first in (entry for entry in entries if entry.event == "start" and entry.rank == 0):
        # The other ranks of this start are those with the nearest times.
        starts = [first]
        for rank in range(1, first.world):
            of_rank = [e for e in entries if (e.event, e.rank) == ("start", rank)]
            nearest = min(of_rank, key=lambda e: abs(e.time_s - first.time_s), default=None)
            if nearest is not None:
                starts.append(nearest)
        steps = [e for e in entries if e.event == "step" and e.pid == first.pid]
        if len(starts) == first.world:
            complete.append(Attempt(tuple(starts), tuple(steps)))
    return complete


def latest(folder: Path) -> Attempt | None:
    """Return the last start of a job, or None before the first."""
    started = attempts(folder)
    return started[-1] if started else None


def reached(folder: Path, attempt: Attempt) -> int:
    """Return the steps of the run at the last step of ``attempt``."""
    steps = [e for e in event_log.read(folder) if e.event == "step" and e.pid == attempt.pids[0]]
    return steps[-1].steps if steps else attempt.begun_at
