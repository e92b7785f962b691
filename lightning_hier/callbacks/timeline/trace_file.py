"""A file of trace events that grows in pieces and can be read at any moment.

The format is the JSON array of Chrome's trace events, one event a line. Its closing bracket may be
missing, so a file of a run that was killed opens as well, up to the last piece that was written.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any

Event = dict[str, Any]

# Events that are kept in memory until they are written.
_PIECE = 1000


class TraceFile:
    """Events of one rank. Safe among threads.

    Args:
        path: overwritten if it exists; its folder is made.
        max_events: that are written; those beyond are counted by category.

    Attributes:
        left_out: number of events that were not written, by category.

    Raises:
        OSError: the file can't be written.

    """

    def __init__(self, path: Path, *, max_events: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.left_out: Counter[str] = Counter()
        self._max_events = max_events
        self._taken = 0
        self._waiting: list[Event] = []
        self._lock = Lock()
        self._file = path.open("w")
        self._separator = "[\n"

    def add(self, event: Event) -> None:
        """Take an event; it is written with the next piece. After :meth:`close` it is dropped."""
        with self._lock:
            if self._taken >= self._max_events:
                self.left_out[event["cat"]] += 1
                if self.left_out.total() == 1:
                    self._waiting.append(self._note(event, "later events are left out"))
                return
            self._taken += 1
            self._waiting.append(event)
            if len(self._waiting) >= _PIECE:
                self._write()

    def add_name(self, event: Event) -> None:
        """Take an event that names a process or a thread; it does not count."""
        with self._lock:
            self._waiting.append(event)

    def flush(self) -> None:
        """Write what has been taken."""
        with self._lock:
            self._write()

    def close(self, last: Event) -> None:
        """Write what is left, ``last`` with the number of events that were left out, and end."""
        with self._lock:
            if self._file.closed:
                return
            numbers = {"events": self._taken, "left_out": dict(self.left_out)}
            self._waiting.append({**last, "args": {**last.get("args", {}), **numbers}})
            self._write()
            self._file.write("\n]\n")
            self._file.close()

    def _note(self, event: Event, text: str) -> Event:
        place = {name: event[name] for name in ("pid", "tid", "ts")}
        said = f"max_events={self._max_events} reached: {text}"
        return {"ph": "i", "s": "p", "name": said, "cat": "timeline", **place}

    def _write(self) -> None:
        """Append whole events: what lies on the disk is an array that may still be open."""
        if not self._waiting or self._file.closed:
            return
        lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in self._waiting)
        self._file.write(self._separator + lines)
        self._file.flush()
        self._separator = ",\n"
        self._waiting.clear()
