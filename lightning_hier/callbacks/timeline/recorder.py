"""Turns what happens on a rank into trace events, each on a lane of its own kind."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from lightning_hier.callbacks.timeline.trace_file import TraceFile
from lightning_hier.comm.traffic import TIERS, Tier

# Numbers of threads, which follow that of their process: no two of a job are the same, and the
# main thread, in the eyes of a viewer, is the one that computes.
_STRIDE = 10_000
COMPUTE = 0
SYNCHRONISATIONS = 1
WAITING = 2
_FIRST_LANE: dict[Tier, int] = {"group": 100, "across": 5000}
_NAMES = {
    COMPUTE: "compute",
    SYNCHRONISATIONS: "synchronisations",
    WAITING: "waiting for other ranks",
}
# Shorter waits are on no lane: a result that was there already takes a few microseconds.
SHORTEST_WAIT_S = 20e-6


_NEVER_NS = -(2**62)


@dataclass
class Lanes:
    """Threads of the trace for messages that may be in flight at a time.

    Slices of one thread must nest. So a message takes the first lane on which everything has
    ended before it began, or a new one.
    """

    first: int
    ends_ns: list[int] = field(default_factory=lambda: [_NEVER_NS])

    def place(self, begun_ns: int, ended_ns: int) -> tuple[int, bool]:
        """The lane of a message, and whether it is a new one."""
        for number, end_ns in enumerate(self.ends_ns):
            if end_ns <= begun_ns:
                self.ends_ns[number] = ended_ns
                return self.first + number, False
        self.ends_ns.append(ended_ns)
        return self.first + len(self.ends_ns) - 1, True


class Recorder:
    """Writes what a rank does; an observer of its ``Traffic``.

    Args:
        file: of this rank.
        rank: of this process.
        host: for its name.
        zero_s: ``time.perf_counter()`` of this rank at the common zero.

    Attributes:
        last_synchronisation_s: when the latest synchronisation began.

    """

    def __init__(self, file: TraceFile, *, rank: int, host: str, zero_s: float) -> None:
        self._file = file
        # Not 0, which is the idle process of a machine.
        self._process = _STRIDE * (rank + 1)
        self._zero_s = zero_s
        self.last_synchronisation_s = -math.inf
        self._lanes = {tier: Lanes(_FIRST_LANE[tier]) for tier in TIERS}
        self._lock = Lock()
        self._name("process_name", {"name": f"rank {rank} on {host}"})
        self._name("process_sort_index", {"sort_index": rank})
        for lane, name in _NAMES.items():
            self._name_lane(lane, name)
        for tier in TIERS:
            self._name_lane(_FIRST_LANE[tier], f"{tier} traffic")

    def slice(
        self,
        lane: int,
        name: str,
        begun_s: float,
        ended_s: float,
        category: str = "compute",
        **args: Any,
    ) -> None:
        """Something that lasted. Slices of a lane must follow or contain each other."""
        begun_ns, ended_ns = self._ns(begun_s), self._ns(ended_s)
        self._add(lane, name, category, begun_ns, args, ph="X", dur=(ended_ns - begun_ns) / 1000)

    def mark(self, name: str, at_s: float, **args: Any) -> None:
        """A moment of the whole rank."""
        self._add(COMPUTE, name, "compute", self._ns(at_s), args, ph="i", s="p")

    def on_message(
        self, tier: Tier, kind: str, payload_bytes: int, begun_s: float, ended_s: float
    ) -> None:
        """Draw a message in flight, or an arrow where it was handed over and nobody waited."""
        begun_ns, ended_ns = self._ns(begun_s), self._ns(ended_s)
        args = {"payload_bytes": payload_bytes}
        if begun_ns == ended_ns:
            self._add(_FIRST_LANE[tier], kind, tier, begun_ns, args, ph="i", s="t")
            return
        with self._lock:
            lanes = self._lanes[tier]
            lane, is_new = lanes.place(begun_ns, ended_ns)
            if is_new:
                self._name_lane(lane, f"{tier} traffic {lane - lanes.first + 1}")
        self._add(lane, kind, tier, begun_ns, args, ph="X", dur=(ended_ns - begun_ns) / 1000)

    def on_wait(self, tier: Tier, begun_s: float, ended_s: float) -> None:
        """Draw a wait that is long enough to be seen."""
        if ended_s - begun_s >= SHORTEST_WAIT_S:
            self.slice(WAITING, f"waiting ({tier})", begun_s, ended_s, "wait")

    def on_synchronisation(self, place: str, begun_s: float, ended_s: float) -> None:
        """Draw a synchronisation."""
        self.last_synchronisation_s = begun_s
        name = re.split(r" \(|, ", place)[0]
        self.slice(SYNCHRONISATIONS, name, begun_s, ended_s, "synchronisation", place=place)

    def flush(self) -> None:
        """Write what has been recorded."""
        self._file.flush()

    def close(self, at_s: float, how: str) -> None:
        """End the file with a mark that says how the run ended."""
        place = {**self._ids(COMPUTE), "ts": self._ns(at_s) / 1000}
        self._file.close({"ph": "i", "s": "p", "name": how, "cat": "timeline", **place})

    @property
    def path(self) -> Path:
        """Of the file."""
        return self._file.path

    @property
    def left_out(self) -> int:
        """Number of events beyond the file's limit."""
        return self._file.left_out.total()

    def _ns(self, at_s: float) -> int:
        return round((at_s - self._zero_s) * 1e9)

    def _add(
        self, lane: int, name: str, category: str, at_ns: int, args: Mapping[str, Any], **more: Any
    ) -> None:
        # Microseconds, as the format has them; whole nanoseconds, so that neighbours don't overlap.
        event = {"name": name, "cat": category, **self._ids(lane), "ts": at_ns / 1000}
        self._file.add(event | more | ({"args": dict(args)} if args else {}))

    def _name_lane(self, lane: int, name: str) -> None:
        self._name("thread_name", {"name": name}, lane)
        self._name("thread_sort_index", {"sort_index": lane}, lane)

    def _name(self, what: str, args: Mapping[str, Any], lane: int = COMPUTE) -> None:
        event = {"ph": "M", "name": what, "cat": "__metadata", **self._ids(lane), "ts": 0}
        self._file.add_name({**event, "args": dict(args)})

    def _ids(self, lane: int) -> dict[str, int]:
        return {"pid": self._process, "tid": self._process + lane}
