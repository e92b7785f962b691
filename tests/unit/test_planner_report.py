"""Predictions of the planner keep their limits, and the committed report is up to date."""

from __future__ import annotations

import pytest

from benchmarks.planner.__main__ import REPORT, report, sections
from benchmarks.planner.comparison import Section

LIMITS = {
    "BMUF on 128 GPUs": 0.01,
    "BMUF_GTC on 128 GPUs": 0.07,
    "Two-stage ASGD": 0.10,
    "BMUF-Adam, OCR": 0.10,
    "One synchronisation, 2 x 2, 1 Gbit/s": 0.20,
    "Complete runs, 2 x 2, 1 Gbit/s": 0.20,
    "Complete runs, 2 x 2, 100 Mbit/s": 0.20,
    "LocalSGD, 4 x 1, measured by others": 0.30,
}


@pytest.mark.parametrize("section", sections(), ids=lambda own: own.title)
def test_predictions_keep_their_limits(section: Section) -> None:
    assert section.rows
    assert not section.missed
    assert section.limit == LIMITS.get(section.title, section.limit)


def test_every_limit_belongs_to_a_section() -> None:
    assert set(LIMITS) <= {section.title for section in sections()}


def test_the_committed_report_is_the_one_that_the_command_writes() -> None:
    assert REPORT.read_text() == report(), "run python -m benchmarks.planner"
