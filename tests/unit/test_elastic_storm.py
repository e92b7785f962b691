"""How the storm draws its kills, and what it finds in the logs of the groups."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.elastic import supervised
from benchmarks.elastic.measures import Measures, measure
from benchmarks.elastic.report import problems, table
from benchmarks.elastic.schedule import Kill, draw_kills
from benchmarks.elastic.supervised import RunRecord, Setup
from examples.elastic.step_log import Line

SETUP = Setup(groups=2, block_size=2, step_s=0.5)


def lines(pid: int, first: int, times: list[float], digest: str = "d") -> list[Line]:
    """Steps of a process, in blocks of two."""
    found = []
    for step, time_s in enumerate(times, start=first):
        ends = step % 2 == 0
        event, values = ("block", (digest, 0.25)) if ends else ("step", (None, None))
        found.append(Line(event, pid, step, time_s, 1.0, *values))
    return found


# Group 1 is killed after its third step, when it waits for group 0, and comes back at step 6.
SURVIVOR = lines(10, 1, [1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0, 10.0])
KILLED = [*lines(11, 1, [1.1, 2.1, 3.1]), *lines(12, 7, [9.1, 10.1])]


def record(*kills: Kill, killed: list[Line] = KILLED) -> RunRecord:
    return RunRecord(0.0, 11.0, list(kills), [], [SURVIVOR, killed])


def test_kills_are_the_same_for_a_seed_and_one_in_each_interval() -> None:
    kills = draw_kills(3, seconds=100.0, every_s=30.0, groups=4)
    assert kills == draw_kills(3, seconds=100.0, every_s=30.0, groups=4)
    assert kills != draw_kills(4, seconds=100.0, every_s=30.0, groups=4)
    assert [int(kill.time_s // 30) for kill in kills] == [0, 1, 2]
    assert all(0 <= kill.group < 4 for kill in kills)


def test_groups_that_fail_again_and_again_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "group_0.txt").write_text("ValueError: wrong\n")
    groups = object.__new__(supervised.Groups)
    job: Any = SimpleNamespace(code=1, pid=7, output=tmp_path / "group_0.txt")
    groups.exits, groups._killed, groups._jobs = [1] * 100, set(), [job]
    groups._lighthouse = SimpleNamespace(code=None)  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="have ended 101 times without a kill:\nValueError: wr"):
        groups.tend()


def test_some_kills_wait_for_a_synchronisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised.time, "monotonic", lambda: 103.8)
    log, kill = tmp_path / "group_1.jsonl", Kill(3.0, 1, delay_s=0.1)
    for last, due in ((KILLED[1], False), (KILLED[2], True)):  # after the second and third step
        own = replace(last, time_s=103.1)
        log.write_text("{}\n" + json.dumps(asdict(own)) + "\n")
        assert supervised._is_due(kill, 3.8, SETUP, log) == due
    assert not supervised._is_due(kill, 2.9, SETUP, log)  # it is not yet time
    assert not supervised._is_due(replace(kill, delay_s=0.3), 3.8, SETUP, log)
    assert supervised._is_due(replace(kill, delay_s=None), 3.8, SETUP, log)


def test_measures_of_a_run_with_a_kill() -> None:
    found = measure(record(Kill(4.0, 1, pid=11)), SETUP)
    assert (found.seconds, found.synchronisations, found.loss) == (11.0, 4, 0.25)
    # Blocks: four of group 0, and two of group 1, whose third step was lost.
    assert (found.steps, found.groups) == (12, 1.5)
    assert found.kills == {"synchronisation": 1}
    assert found.back_s == [pytest.approx(5.1)]
    assert found.longest_pause_s == 3.0
    assert found.longest_stop_s == pytest.approx(2.9)
    assert (found.different, found.not_back, found.exits) == (0, 0, [])


@pytest.mark.parametrize(
    ("kill", "kind"),
    [
        (Kill(3.3, 1, pid=11), "block"),  # it still computes
        (Kill(2.2, 1, pid=11), "block"),
        (Kill(5.0, 1, pid=99), "start"),  # of a process that has not trained
    ],
)
def test_where_a_kill_has_found_its_group(kill: Kill, kind: str) -> None:
    assert measure(record(kill), SETUP).kills == {kind: 1}


def test_a_group_that_is_not_back_and_models_that_differ() -> None:
    found = measure(record(Kill(10.5, 1, pid=12)), SETUP)
    assert (found.back_s, found.not_back) == ([], 1)
    other = [*KILLED[:3], *lines(12, 3, [4.0, 5.0], digest="x"), *KILLED[3:]]
    assert measure(record(killed=other), SETUP).different == 1
    whole = measure(record(killed=other), SETUP, independent=False)
    assert (whole.different, whole.longest_pause_s) == (None, None)


def test_problems_of_a_storm() -> None:
    whole = measure(record(), SETUP)
    seeds = [whole, replace(whole, loss=0.3)]
    assert problems(whole, whole, seeds) == []
    bad: Measures = replace(whole, synchronisations=3, different=2, exits=[1], loss=0.4)
    share, models, exits, loss = problems(whole, bad, seeds)
    assert share.startswith("75.0% of the synchronisations")
    assert "2 synchronisations" in models and "[1]" in exits and "0.40000" in loss


def test_table_has_a_column_for_each_run() -> None:
    storm = measure(record(Kill(4.0, 1, pid=11)), SETUP)
    text = table({"without": measure(record(), SETUP), "storm": storm})
    assert len({line.count("|") for line in text.splitlines()}) == 1
    (row,) = [line for line in text.splitlines() if line.startswith("| s from a kill")]
    assert "| 5.1 (5.1) " in row
