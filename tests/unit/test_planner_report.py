"""Predictions of the planner keep their limits, and the committed report is up to date."""

from __future__ import annotations

import pytest

from benchmarks.planner import REPORT, Section, report, sections


@pytest.mark.parametrize("section", sections(), ids=lambda own: own.title)
def test_predictions_keep_their_limits(section: Section) -> None:
    assert section.rows
    assert not section.missed
    assert section.limit <= 0.20


def test_the_committed_report_has_the_tables_that_the_command_writes() -> None:
    committed = REPORT.read_text()
    assert report(committed) == committed, "run python -m benchmarks.planner"
