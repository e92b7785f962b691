"""Benchmark pages show the committed results, and the picture has one for every bar."""

from __future__ import annotations

from benchmarks.headline import RATES, STEP_SYSTEMS, step_ratios
from benchmarks.performance.page import PAGE, measured_tables, replace_tables
from benchmarks.performance.results import REPORTED, Results


def test_committed_page_has_the_tables_of_the_committed_results() -> None:
    committed = PAGE.read_text()
    assert replace_tables(committed, measured_tables(REPORTED)) == committed


def test_every_bar_has_been_measured() -> None:
    steps = step_ratios(Results.of(REPORTED))
    assert set(steps) == set(RATES)
    for ratios in steps.values():
        assert len(ratios) == len(STEP_SYSTEMS)
        assert min(ratios) >= 1.0
        assert ratios[0] == max(ratios)  # DDP, with which the picture compares the others
