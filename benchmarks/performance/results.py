"""What the store holds, by run: ratios are formed within a run, and then the runs are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.performance.figures import Figures
from benchmarks.performance.store import Line, Store

Section = dict[str, Any]

REPORTED = Path(__file__).resolve().parents[2] / "docs" / "reports" / "performance"
"""Where what the report was made of lies, beside its page."""


class Results:
    """The lines of a store, sorted.

    Args:
        lines: as :meth:`~benchmarks.performance.store.Store.lines` gives them.

    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = list(lines)

    @classmethod
    def of(cls, folder: Path) -> Results:
        """Those that lie in a folder."""
        return cls(Store(folder / "results.jsonl").lines())

    @property
    def kinds(self) -> list[str]:
        """Networks and works of the rows, in the order in which they were measured."""
        return list(dict.fromkeys(line["kind"] for line in self._lines if "system" in line))

    def figures(self, kind: str, system: str) -> dict[int, Figures]:
        """Of the runs that have them."""
        return {
            line["run"]: Figures(**line["figures"])
            for line in self._rows(kind, system)
            if "figures" in line
        }

    def failure(self, kind: str, system: str) -> str | None:
        """Why there are none, where a run was tried."""
        return next((row["failed"] for row in self._rows(kind, system) if "failed" in row), None)

    def section(self, name: str) -> dict[int, Any]:
        """What was found of something that is no row of the table of systems, by run."""
        own = (line for line in self._lines if line.get("section") == name)
        return {line["run"]: line["found"] for line in own}

    def against(
        self, kind: str, system: str, other: str, value: Callable[[Figures], float]
    ) -> list[float]:
        """A value of a system over that of another, in each run that has both."""
        above, below = self.figures(kind, system), self.figures(kind, other)
        return [value(above[run]) / value(below[run]) for run in sorted(set(above) & set(below))]

    def to_limit(self, kind: str, system: str) -> list[float]:
        """A step against one of the same ranks without communication, in each run."""
        return [own.ratio for _, own in sorted(self.figures(kind, system).items())]

    def _rows(self, kind: str, system: str) -> list[Line]:
        return [
            line
            for line in self._lines
            if line.get("kind") == kind and line.get("system") == system
        ]
