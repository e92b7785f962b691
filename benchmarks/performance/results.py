"""Results in the store, by run. Ratios are computed within a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.performance.figures import Figures
from benchmarks.performance.store import Line, Store

Section = dict[str, Any]

REPORTED = Path(__file__).resolve().parents[2] / "docs" / "reports" / "performance"
"""Folder of the results from which the committed report was generated."""


class Results:
    """Access to the lines of a store.

    Args:
        lines: result of :meth:`~benchmarks.performance.store.Store.lines`.

    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = list(lines)

    @classmethod
    def of(cls, folder: Path) -> Results:
        """Read the results in ``folder``."""
        return cls(Store(folder / "results.jsonl").lines())

    @property
    def kinds(self) -> list[str]:
        """Networks and works of the rows, in the order in which they were measured."""
        return list(dict.fromkeys(line["kind"] for line in self._lines if "system" in line))

    def figures(self, kind: str, system: str) -> dict[int, Figures]:
        """Return the figures of a system, by run. Runs without figures are left out."""
        return {
            line["run"]: Figures(**line["figures"])
            for line in self._rows(kind, system)
            if "figures" in line
        }

    def failure(self, kind: str, system: str) -> str | None:
        """Return the error of a system that failed, or None."""
        return next((row["failed"] for row in self._rows(kind, system) if "failed" in row), None)

    def section(self, name: str) -> dict[int, Any]:
        """Return the results of a section other than the systems, by run."""
        lines = (line for line in self._lines if line.get("section") == name)
        return {line["run"]: line["found"] for line in lines}

    def to_limit(self, kind: str, system: str) -> list[float]:
        """Return the time of a step relative to one without communication, in each run."""
        return [figures.ratio for _, figures in sorted(self.figures(kind, system).items())]

    def _rows(self, kind: str, system: str) -> list[Line]:
        return [
            line
            for line in self._lines
            if line.get("kind") == kind and line.get("system") == system
        ]
