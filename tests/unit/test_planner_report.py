"""Predictions of the planner keep their limits, and the committed report is up to date."""

from __future__ import annotations

import pytest

from benchmarks.planner.__main__ import REPORT, report, sections
from benchmarks.planner.block_costs import BlockCosts, SpeedupReading, fit_block_costs
from benchmarks.planner.comparison import Comparison, Section

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


def test_row_beyond_its_limit_is_reported() -> None:
    rows = [Comparison(name=str(n), predicted=n, reference=100) for n in (90, 100, 121)]
    section = Section(title="t", unit="s", source="f", given="g", rows=rows, limit=0.2)
    assert [row.name for row in section.missed] == ["121"]
    assert section.verdict == "1 of 3 exceed it"
    assert "+21.0%" in section.text()


def test_fitting_finds_the_parameters_of_exact_readings() -> None:
    own = BlockCosts(efficiency=0.9, synchronisation_steps=5)
    readings = [
        SpeedupReading(ranks=ranks, block_size=size, speedup=own.speedup(ranks, size))
        for ranks, size in ((8, 10), (8, 50), (64, 20))
    ]
    fitted = fit_block_costs(readings)
    assert fitted.efficiency == pytest.approx(0.9)
    assert fitted.synchronisation_steps == pytest.approx(5)


def test_fitting_refuses_readings_without_a_solution() -> None:
    one = SpeedupReading(ranks=8, block_size=10, speedup=7)
    with pytest.raises(ValueError, match="at least two block sizes"):
        fit_block_costs([one, one])
    slower = SpeedupReading(ranks=8, block_size=100, speedup=3)
    with pytest.raises(ValueError, match="must grow with the block size"):
        fit_block_costs([one, slower])
