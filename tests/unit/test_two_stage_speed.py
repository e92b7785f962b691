"""Arithmetic of the speed benchmark of two-stage ASGD, with invented readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.two_stage_ranks import Configuration, window
from benchmarks.two_stage_speed import Repetition, two_stage

_ALONE = Configuration(system="alone", device="core")
_PAIR = two_stage("core", 2)
# 100 frames a mini-batch, ten of them a second; the model takes 0.15 s over the link.
_READINGS: dict[Configuration, list[dict[str, float]]] = {
    _ALONE: [{"steps": 20.0, "seconds": 2.0, "cpu_seconds": 1.0}, {}],
    _PAIR: [
        {"steps": 12.0, "seconds": 1.5, "cpu_seconds": 1.2},
        {
            **{"steps": 12.0, "seconds": 2.0, "cpu_seconds": 0.6},
            **{"node/pushes": 4.0, "node/gradients": 10.0, "node/seconds": 1.4},
        },
    ],
}
_REPETITION = Repetition(_READINGS, link_s=0.15, model_bytes=600, frames=100)


def test_speed_is_the_sum_of_the_speeds_of_all_ranks() -> None:
    assert _REPETITION.speed(_ALONE) == pytest.approx(1000)
    assert _REPETITION.speed(_PAIR) == pytest.approx(1200 / 1.5 + 1200 / 2.0)


def test_without_double_buffering_a_head_start_does_not_count() -> None:
    locked = two_stage("core", 2, double_buffering=False)
    readings = {**_READINGS, locked: _READINGS[_PAIR]}
    own = Repetition(readings, link_s=0.15, model_bytes=600, frames=100)
    assert own.speed(locked) == pytest.approx(2 * 1200 / 2.0)


@pytest.mark.parametrize(
    ("push_period", "double_buffering", "period_s"),
    [(1, True, 0.3), (1, False, 0.4), (3, True, 0.3), (3, False, 0.6), (6, True, 0.6)],
)
def test_prediction_is_limited_by_the_node_that_sends_over_the_link(
    push_period: int, double_buffering: bool, period_s: float
) -> None:
    config = two_stage("core", push_period, double_buffering=double_buffering)
    assert _REPETITION.predicted_period(config) == pytest.approx(period_s)
    frames = 2 * 100 * push_period
    assert _REPETITION.predicted_speed(config) == pytest.approx(frames / period_s)


def test_period_and_exchange_are_those_of_the_node_that_sends_over_the_link() -> None:
    assert _REPETITION.gradients_per_push(_PAIR) == pytest.approx(2.5)
    assert _REPETITION.period(_PAIR) == pytest.approx(2.0 / 12 * 2.5)
    assert _REPETITION.exchange_seconds(_PAIR) == pytest.approx(0.35)
    assert _REPETITION.processor_ms(_PAIR, 0) == pytest.approx(100)


@given(push_period=st.integers(1, 64), double_buffering=st.booleans())
def test_a_window_holds_whole_periods_after_the_first(
    push_period: int, double_buffering: bool
) -> None:
    first, last = window(two_stage("core", push_period, double_buffering=double_buffering))
    assert first >= push_period
    assert (last - first) % push_period == 0
    assert last - first >= 3 * push_period
