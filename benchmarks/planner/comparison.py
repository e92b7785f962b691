"""Predictions beside what was found, in sections of a report."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from examples.tables import markdown


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One value.

    Attributes:
        name: of the row.
        predicted: by the planner.
        found: reported or measured.

    """

    name: str
    predicted: float
    found: float

    @property
    def deviation(self) -> float:
        """Of the prediction, as a share of what was found."""
        return self.predicted / self.found - 1


@dataclass(frozen=True, kw_only=True)
class Section:
    """Values that one set of parameters predicts.

    Attributes:
        title: of the section.
        unit: of the values.
        source: where they were found.
        given: what the planner was told, and what of it was fitted to these values.
        rows: the values.
        limit: by which each may deviate; None where none was set.
        remark: what is to be said about it.

    """

    title: str
    unit: str
    source: str
    given: str
    rows: Sequence[Comparison]
    limit: float | None
    remark: str = ""

    @property
    def largest(self) -> float:
        """Deviation, without its sign."""
        return max(abs(row.deviation) for row in self.rows)

    @property
    def missed(self) -> list[Comparison]:
        """Rows beyond the limit."""
        limit = self.limit
        return [] if limit is None else [row for row in self.rows if abs(row.deviation) > limit]

    @property
    def verdict(self) -> str:
        """Whether the limit is kept."""
        if self.limit is None:
            return "none set"
        missed = len(self.missed)
        return "yes" if not missed else f"{missed} of {len(self.rows)} beyond it"

    def text(self) -> str:
        """As a section in Markdown."""
        header = ("", f"predicted, {self.unit}", f"found, {self.unit}", "deviation")
        rows = [
            (row.name, f"{row.predicted:.4g}", f"{row.found:.4g}", f"{row.deviation:+.1%}")
            for row in self.rows
        ]
        parts = [f"## {self.title}", f"Found: {self.source}. Given: {self.given}",
                 markdown(header, rows), self.remark]  # fmt: skip
        return "\n\n".join(part for part in parts if part)


def summary(sections: Sequence[Section]) -> str:
    """The limits, as a table."""
    rows = [
        (
            own.title,
            "-" if own.limit is None else f"{own.limit:.0%}",
            f"{own.largest:.1%}",
            own.verdict,
        )
        for own in sections
    ]
    return markdown(("", "limit", "largest deviation", "kept"), rows)


def wrapped(text: str) -> str:
    """In lines of a report."""
    return textwrap.fill(text, 115, break_long_words=False, break_on_hyphens=False)
