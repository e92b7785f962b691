"""Predictions and their reference values in sections of a report."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from examples.tables import markdown


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A predicted value and its reference.

    Attributes:
        name: name of the row.
        predicted: value predicted by the planner.
        reference: reported or measured value.

    """

    name: str
    predicted: float
    reference: float

    @property
    def deviation(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.reference - 1


@dataclass(frozen=True, kw_only=True)
class Section:
    """Values predicted with the same parameters.

    Attributes:
        title: title of the section.
        unit: unit of the values.
        source: source of the reference values.
        given: inputs of the planner, and which of them were fitted to these values.
        rows: the values.
        limit: largest deviation allowed. None: no limit.
        remark: remark below the table.

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
        """Largest absolute deviation."""
        return max(abs(row.deviation) for row in self.rows)

    @property
    def missed(self) -> list[Comparison]:
        """Rows beyond the limit."""
        limit = self.limit
        return [] if limit is None else [row for row in self.rows if abs(row.deviation) > limit]

    @property
    def verdict(self) -> str:
        """Whether all rows are within the limit."""
        if self.limit is None:
            return "no limit"
        missed = len(self.missed)
        return "yes" if not missed else f"{missed} of {len(self.rows)} exceed it"

    def text(self) -> str:
        """Return the section as Markdown."""
        header = ("", f"predicted ({self.unit})", f"reference ({self.unit})", "deviation")
        rows = [
            (row.name, f"{row.predicted:.4g}", f"{row.reference:.4g}", f"{row.deviation:+.1%}")
            for row in self.rows
        ]
        parts = [f"## {self.title}", f"Reference: {self.source}. Inputs: {self.given}",
                 markdown(header, rows), self.remark]  # fmt: skip
        return "\n\n".join(part for part in parts if part)


def summary(sections: Sequence[Section]) -> str:
    """Return a table of the limits."""
    rows = [
        (
            section.title,
            "-" if section.limit is None else f"{section.limit:.0%}",
            f"{section.largest:.1%}",
            section.verdict,
        )
        for section in sections
    ]
    return markdown(("", "limit", "largest deviation", "within limit"), rows)


def wrapped(text: str) -> str:
    """Wrap text at the line length of the reports."""
    return textwrap.fill(text, 115, break_long_words=False, break_on_hyphens=False)
