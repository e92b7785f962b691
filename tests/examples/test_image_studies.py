"""The studies: what they take over from the paper, their tables, and a rank that is killed."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from examples.image import study_killed_rank, study_memory
from examples.image.lone_ranks import run_apart
from examples.image.runs import Result, Settings
from examples.image.step_clock import StepClock
from examples.image.systems import SYSTEMS
from examples.studies import page, psp_sgd
from tests.examples.test_image_demo import counted, outcome


def test_a_worker_waits_as_often_as_in_the_paper() -> None:
    for ranks in (4, 8, 32):
        share = psp_sgd.share_for(ranks)
        assert (1 - share) ** ranks == pytest.approx((1 - 0.0016) ** 32)
    assert psp_sgd.share_for(32) == pytest.approx(0.0016)


def test_the_delay_slows_synchronous_sgd_down_as_in_the_paper() -> None:
    """In a step it waits for the delay if one of all replies is late."""
    ranks, step_s = 8, 0.4
    waits = 1 - (1 - psp_sgd.share_for(ranks)) ** (ranks * ranks)
    slowed = step_s + waits * psp_sgd.delay_for(ranks, step_s)
    assert slowed / step_s == pytest.approx(199.97 / 139.95)


def test_an_epoch_is_told_by_its_median() -> None:
    """Of epochs of 1, 2 and 9 s."""
    curve = [(1.0, 0.1), (3.0, 0.2), (12.0, 0.3)]
    assert psp_sgd.epoch_s(outcome(Settings(system="all"), curve=curve)) == 2.0


def test_the_page_compares_times_with_those_of_synchronous_sgd_and_answers_the_claims(
    tmp_path: Path,
) -> None:
    """From stored results: partial pushing takes 3/4 of the time, both 1/2; errors are alike."""
    table = psp_sgd.table(replace(psp_sgd.BASE, ranks=4))
    scale = {"all": 20.0, "most": 15.0, "most_and_pull": 10.0, "few": 9.0}
    with (tmp_path / "runs.jsonl").open("w") as file:
        for seed in range(2):
            for row in table.rows:
                seconds = scale[row.run.system] + 0.1 * seed - 8.0 * (not row.run.late_reply_share)
                result = outcome(replace(row.run, seed=seed), curve=[(seconds, 0.5)])
                file.write(json.dumps(asdict(result)) + "\n")
    told = argparse.Namespace(name="psp_sgd", out=tmp_path, seeds=2, jobs=1, tables=None)
    told.data, told.quick = None, False
    page.write(psp_sgd.EXPERIMENT, "Title", {"1": table}, told)
    text = (tmp_path / "report.md").read_text()
    [line] = [line for line in text.splitlines() if line.startswith(f"| {SYSTEMS['most'].title} ")]
    assert "| 15.05 ± 0.07 " in line and "| +24.9 ± " in line and "| +17.5 " in line
    assert "partial pulling too takes less time still" in text
    assert text.count("**holds**") == 2 and text.count("**cannot be seen at this size**") == 2


def test_a_death_is_told_by_its_epoch() -> None:
    """After the first, epochs of 2, 7 and 3 s."""
    curve = [(9.0, 0.1), (11.0, 0.2), (18.0, 0.3), (21.0, 0.4)]
    assert study_killed_rank.excess_s(outcome(Settings(system="all"), curve=curve)) == 4.0


def test_memory_is_told_in_models() -> None:
    ranks = [counted(rank, start_bytes=10_000, peak_bytes=22_000) for rank in range(4)]
    results = [outcome(Settings(system="all"), ranks=ranks)]
    line = study_memory.table([results]).splitlines()[-1]
    # 1000 parameters of 4 bytes.
    assert line.split("|")[-2].strip() == "3.0"


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
    job = {"runs": [settings.anywhere()], "results": str(file)}
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
