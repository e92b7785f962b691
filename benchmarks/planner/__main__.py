"""Writes docs/reports/planner.md: what the planner predicts beside what was found.

    python -m benchmarks.planner            writes it
    python -m benchmarks.planner --check    fails where a limit is missed that is not known to be

Nothing is measured: the numbers are those of the papers' tables and of reports beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.planner import measured, papers
from benchmarks.planner.comparison import Section, summary, wrapped

REPORT = Path(__file__).resolve().parents[2] / "docs" / "reports" / "planner.md"

_TITLE = "# What the planner predicts, and what was found"

_SAID = (
    "Predictions of `lightning-hier plan` ([planning](../planning.md)) beside the papers' own "
    "tables and our measurements over emulated hosts. Made by `python -m benchmarks.planner`, "
    "which measures nothing; hardware, versions and spread of our own figures are in the reports "
    "that each section names. A deviation is that of the prediction, as a share of what was found.",
    "No parameter was chosen row by row: each section says what was given, and what was fitted to "
    "all its rows together. How many copies each pass over a model counts for was taken from the "
    "figures of [performance](performance.md) and from the code, the same for all sections.",
)


def sections() -> list[Section]:
    """All of the report."""
    return [*papers.sections(), *measured.sections()]


def report() -> str:
    """As Markdown."""
    found = sections()
    texts = [own.text() for own in found]
    head = [_TITLE, *map(wrapped, _SAID)]
    return "\n\n".join([*head, summary(found), *texts]) + "\n"


def main() -> None:
    """Write the report, or check it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail where it misses")
    if not parser.parse_args().check:
        REPORT.write_text(report())
        print(f"wrote {REPORT}")
        return
    missed = [f"{own.title}: {row.name} {row.deviation:+.1%}" for own in sections()
              for row in own.missed]  # fmt: skip
    print("\n".join(missed) or "every limit is kept")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
