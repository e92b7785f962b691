"""Marks of axes, units and curves of the report's plots."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hier.cli.report.axis import Axis, Form
from lightning_hier.cli.report.runs import Series, distinct_names
from lightning_hier.cli.report.smoothing import smoothed, thinned
from lightning_hier.cli.report.ticks import log_ticks, said, short, ticks

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(st.lists(numbers, min_size=1, max_size=20), st.sampled_from(["zero", "free"]))
def test_values_and_marks_lie_on_the_axis(values: list[float], form: Form) -> None:
    axis = Axis(values, "bytes", 50.0, 380.0, form=form)
    for place in [*map(axis.place, values), *map(axis.mark_place, axis.marks)]:
        assert 50.0 - 1e-6 <= place <= 380.0 + 1e-6
    assert 1 <= len(axis.marks) <= 12


@given(st.floats(1e-9, 1e9), st.floats(1.0, 1e9))
def test_logarithmic_marks_are_within(low: float, ratio: float) -> None:
    assert all(low <= mark <= low * ratio for mark in log_ticks(low, low * ratio))
    assert len(log_ticks(low, low * ratio)) <= 12


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
        (0.0, 1320.0, [0, 500, 1000]),
        (0.13, 0.41, [0.2, 0.3, 0.4]),
    ],
)
def test_marks_are_round(low: float, high: float, marks: list[float]) -> None:
    assert ticks(low, high) == marks


def test_numbers_in_words() -> None:
    assert [short(v) for v in (0, 0.05, 12, 12_500, 2e-7, 3.2e9)] == [
        "0",
        "0.05",
        "12",
        "12.5k",
        "2e-7",
        "3.2e9",
    ]
    assert said("bytes", 216_000_000) == "216 MB"
    assert said("bytes", 1500) == "1.5e+03 B" or said("bytes", 1500) == "1500 B"
    assert said("seconds", 90.0) == "90 s"
    assert said("seconds", 7200.0) == "2 h"
    assert said("", 0.27771234) == "0.2777"


def test_value_between_two_steps() -> None:
    series = Series.of([(10, 1.0), (20, 3.0), (20, 2.0)])
    assert series.values == (1.0, 2.0)
    assert [series.at(step) for step in (9, 10, 15, 20, 21)] == [None, 1.0, 1.5, 2.0, None]


@given(st.lists(st.floats(-1e3, 1e3), min_size=401, max_size=600))
@settings(max_examples=20)
def test_thinned_curve_keeps_its_ends_and_extremes(values: list[float]) -> None:
    points = list(enumerate(values))
    kept = thinned(points)
    assert len(kept) <= 402
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert {min(values), max(values)} <= {value for _, value in kept}


def test_only_noise_is_smoothed() -> None:
    assert smoothed([(n, 1.0 / (n + 1)) for n in range(200)]) is None
    assert smoothed([(0, 1.0), (1, 0.0)]) is None
    noisy = [(float(n), float(n % 2)) for n in range(200)]
    mean = smoothed(noisy)
    assert mean is not None and [at for at, _ in mean] == [at for at, _ in noisy]
    assert all(abs(value - 0.5) < 0.1 for _, value in mean[10:-10])


def test_names_tell_folders_apart() -> None:
    def names(*paths: str) -> list[str]:
        return distinct_names([Path(path) for path in paths])

    assert names("/a/logs/ddp/version_0", "/a/logs/bmuf/version_0") == ["ddp", "bmuf"]
    assert names("/a/ddp/version_0", "/a/ddp/version_1") == ["version_0", "version_1"]
    assert names("/a/x/version_0", "/a/y/version_1") == ["x/version_0", "y/version_1"]
    assert names("/a/ddp/version_3") == ["ddp/version_3"]
    assert names("/a/b", "/a/b/c") == ["b", "b/c"]
