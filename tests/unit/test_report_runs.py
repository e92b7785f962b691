"""The report: units, interpolation between two steps, and names of runs."""

from __future__ import annotations

from pathlib import Path

from lightning_hier.cli.report.runs import Series, distinct_names
from lightning_hier.cli.report.units import with_unit


def test_units() -> None:
    assert with_unit("bytes", 216_000_000) == "216 MB"
    assert with_unit("bytes", 1500) == "1500 B"
    assert with_unit("seconds", 90.0) == "90 s"
    assert with_unit("seconds", 7200.0) == "2 h"
    assert with_unit("", 0.27771234) == "0.2777"


def test_value_between_two_steps() -> None:
    series = Series.of([(10, 1.0), (20, 3.0), (20, 2.0)])
    assert series.values == (1.0, 2.0)
    assert [series.at(step) for step in (9, 10, 15, 20, 21)] == [None, 1.0, 1.5, 2.0, None]


def test_names_distinguish_folders() -> None:
    def names(*paths: str) -> list[str]:
        return distinct_names([Path(path) for path in paths])

    assert names("/a/logs/ddp/version_0", "/a/logs/bmuf/version_0") == [
        "ddp/version_0",
        "bmuf/version_0",
    ]
    assert names("/a/ddp/version_0", "/a/ddp/version_1") == ["version_0", "version_1"]
    assert names("/a/x/version_0", "/a/y/version_1") == ["x/version_0", "y/version_1"]
    assert names("/a/ddp/version_3") == ["ddp/version_3"]
    assert names("/a/b", "/a/b/c") == ["b", "b/c"]
