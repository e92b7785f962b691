"""Tests of the image example's demo and studies: results, tables, waiting time.

`.ci/run` runs the demo itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from examples.image import demo
from examples.image.run_systems import run
from examples.image.runs import RankResult, Result, Settings
from examples.image.step_clock import StepClock
from tests.ranks import run_ranks

TINY = Settings(
    system="all_reduce",
    model_args={"channels": [2]},
    ranks=2,
    late_rank=1,
    late_seconds=0.02,
    epochs=2,
    batch_images=64,
)


def counted(rank: int, **values: float) -> dict[str, float]:
    zeros = dict.fromkeys(RankResult.__dataclass_fields__, 0.0)
    return zeros | {"rank": rank, "updates": 10.0, "gradients_per_update": 3.0} | values


def outcome(settings: Settings, **values: object) -> Result:
    waited = (1.0, 2.0, 6.0, 50.0)
    result = Result(
        settings=settings.portable_settings(),
        parameters=1000,
        test_accuracy=0.971,
        curve=[(4.0, 0.5), (8.25, 0.975), (12.0, 0.98)],
        train_seconds=12.4,
        ranks=[
            counted(rank, waited_s=waited[rank], sent_bytes=3_085_000, dropped=float(rank))
            for rank in range(settings.ranks)
        ],
    )
    return replace(result, **values)


def test_result_of_a_run() -> None:
    first, second = run_ranks(run, 2, TINY)
    assert first.settings == asdict(TINY)
    assert [accuracy for _, accuracy in first.curve] == [accuracy for _, accuracy in second.curve]
    assert [seconds for seconds, _ in first.curve] == sorted(seconds for seconds, _ in first.curve)
    assert first.curve[-1][0] == first.train_seconds
    assert 0.0 < first.test_accuracy == second.test_accuracy
    # 1197 images on 2 ranks: 10 steps in each of 2 epochs.
    assert first.of_ranks("slept_s") == pytest.approx([0.0, 20 * 0.02])
    assert (first.dropped_gradients, first.used_share) == (0.0, 1.0)
    assert first.ranks == second.ranks
    assert first.sent_bytes > 0
    for rank in first.ranks:
        assert 0 < rank["start_bytes"] <= rank["peak_bytes"]
        assert 0 < rank["median_step_s"] <= rank["longest_step_s"]
    # The study stores results as JSON.
    assert Result(**json.loads(json.dumps(asdict(first)))) == replace(
        first, curve=[list(point) for point in first.curve]
    )


def test_a_row_shows_fast_ranks_and_the_first_good_epoch() -> None:
    row = demo.row(outcome(Settings(system="all_reduce")))
    assert row == ("synchronous SGD", "12", "8", "97.1%", "75.0%", "2", "3.0", "12.3")
    never = outcome(Settings(system="all_reduce"), curve=[(1.0, 0.2)])
    assert demo.row(never)[2] == "-"


class _Clocks:
    """Wall and CPU clocks that the test sets."""

    wall = 0.0
    cpu = 0.0


def test_waiting_time_excludes_computation_and_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = _Clocks()
    monkeypatch.setattr("examples.image.step_clock.time.monotonic", lambda: clocks.wall)
    monkeypatch.setattr("examples.image.step_clock.time.thread_time", lambda: clocks.cpu)
    pause: Any = type("Slept", (), {"slept_s": 1.0})()
    clock = StepClock([pause])
    for wall, cpu in ((2.0, 0.5), (5.0, 0.5), (3.0, 0.5)):
        clock.on_train_batch_start(None, None, None, 0)
        clocks.wall += wall
        clocks.cpu += cpu
        clock.on_train_batch_end(None, None, None, None, 0)
        clocks.wall += 100.0  # validation
    assert clock.steps_s == [2.0, 5.0, 3.0]
    assert clock.waited_s == 10.0 - 1.5 - 1.0
    assert (clock.longest_s, clock.median_s) == (5.0, 3.0)
