"""Counters of servers and workers of PSP-SGD, for logging."""

from __future__ import annotations

from collections import deque
from threading import Lock

# Gradients over which the staleness that is logged is a mean.
WINDOW = 1000


class ServerCounts:
    """Counts of one rank's servers, written in the server_loop's thread and read from any.

    A gradient that is pushed ends as one of ``used``, ``dropped`` and ``nonfinite``, unless the
    server dies first.

    Attributes:
        used: gradients that have gone into an update, or lie in the round under way.
        dropped: gradients that came too late (Algorithm 1, server, line 8), or for a second time.
        nonfinite: gradients, and updates, that had NaN or inf in them and were left out.
        rounds: updates of a block.
        takeovers: blocks taken over from ranks that are gone.

    """

    def __init__(self) -> None:
        self.used = 0
        self.dropped = 0
        self.nonfinite = 0
        self.rounds = 0
        self.takeovers = 0
        self._in_rounds = 0
        self._staleness: deque[int] = deque(maxlen=WINDOW)
        self._lock = Lock()

    def note_used(self, staleness: int) -> None:
        """Count a gradient that is used, computed with a block ``staleness`` versions old."""
        with self._lock:
            self.used += 1
            self._staleness.append(staleness)

    def note_round(self, gradients: int, *, done: bool) -> None:
        """Count an update from ``gradients`` gradients; ``done``: it was not undone."""
        with self._lock:
            self.rounds += 1
            self._in_rounds += gradients
            self.nonfinite += not done

    def metrics(self) -> dict[str, float]:
        """All counts by metric name."""
        with self._lock:
            return {
                "hier/psp/staleness": sum(self._staleness) / max(1, len(self._staleness)),
                "hier/psp/dropped": float(self.dropped),
                "hier/psp/nonfinite": float(self.nonfinite),
                "hier/psp/rounds": float(self.rounds),
                "hier/psp/gradients_per_round": self._in_rounds / max(1, self.rounds),
                "hier/psp/takeovers": float(self.takeovers),
            }


class WorkerCounts:
    """Counts of one worker, used by its thread only.

    Attributes:
        late: blocks that arrived after the worker had gone on without them, or twice.
        waiting_s: seconds spent waiting for blocks.

    """

    def __init__(self) -> None:
        self.late = 0
        self.waiting_s = 0.0

    def metrics(self, unsent: int) -> dict[str, float]:
        """All counts by metric name; ``unsent``: gradients that could not be sent in time."""
        return {
            "hier/psp/late": float(self.late),
            "hier/psp/unsent": float(unsent),
            "hier/psp/waiting_seconds": self.waiting_s,
        }
