"""The studies: what counts as waiting, and a rank that is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.image import study_killed_rank
from examples.image.lone_ranks import run_apart
from examples.image.runs import Result, Settings
from examples.image.step_clock import StepClock


class _Clocks:
    """Wall and CPU clocks that are moved by hand."""

    wall = 0.0
    cpu = 0.0


def test_waiting_is_what_is_neither_computed_nor_slept(monkeypatch: pytest.MonkeyPatch) -> None:
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


def killed_run(folder: Path, step: int | None) -> Result:
    settings = Settings(
        system="three_quarters",
        model_args={"channels": [2]},
        epochs=2,
        batch_images=64,
        pace_seconds=0.05,
        killed_rank=None if step is None else 2,
        killed_step=step or 0,
    )
    file = folder / "results.jsonl"
    job = {"runs": [settings.portable_settings()], "results": str(file)}
    run_apart("examples.image.run_systems", json.dumps(job), ranks=4)
    (line,) = file.read_text().splitlines()
    return Result(**json.loads(line))


@pytest.mark.slow
def test_a_killed_rank_costs_its_time_of_grace_once(tmp_path: Path) -> None:
    result = killed_run(tmp_path, 4)
    assert result.of_ranks("rank") == [0.0, 1.0, 3.0]
    assert max(result.of_ranks("longest_step_s")) > 10 * max(result.of_ranks("median_step_s"))
    assert len(result.curve) == 2
    table = study_killed_rank.table([[result]])
    assert "rank 2 at step 4" in table


def test_a_run_of_which_no_rank_ends_well_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"on 2 ranks ended with statuses \[1, 1\]"):
        run_apart("examples.no_such_module", "{}", ranks=2)
