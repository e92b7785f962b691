"""The elastic benchmark: measures from the logs of the groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.elastic.measures import Measures, measure
from benchmarks.elastic.report import problems
from benchmarks.elastic.schedule import Kill
from benchmarks.elastic.supervised import RunRecord, Setup
from examples.elastic.step_log import Line

SETUP = Setup(groups=2, block_size=2, step_s=0.5)


def lines(pid: int, first: int, times: list[float], digest: str = "d") -> list[Line]:
    """Log lines of a process with blocks of two steps."""
    result = []
    for step, time_s in enumerate(times, start=first):
        ends = step % 2 == 0
        event, values = ("block", (digest, 0.25)) if ends else ("step", (None, None))
        result.append(Line(event, pid, step, time_s, 1.0, *values))
    return result


# Group 1 is killed after its third step, when it waits for group 0, and comes back at step 6.
SURVIVOR = lines(10, 1, [1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0, 10.0])
KILLED = [*lines(11, 1, [1.1, 2.1, 3.1]), *lines(12, 7, [9.1, 10.1])]


def record(*kills: Kill, killed: list[Line] = KILLED) -> RunRecord:
    return RunRecord(0.0, 11.0, list(kills), [], [SURVIVOR, killed])


def test_measures_of_a_run_with_a_kill() -> None:
    measures = measure(record(Kill(4.0, 1, pid=11)), SETUP)
    assert (measures.seconds, measures.synchronisations, measures.loss) == (11.0, 4, 0.25)
    # Blocks: four of group 0, and two of group 1, whose third step was lost.
    assert (measures.steps, measures.groups) == (12, 1.5)
    assert measures.kills == {"synchronisation": 1}
    assert measures.back_s == [pytest.approx(5.1)]
    assert measures.longest_pause_s == 3.0
    assert measures.longest_stop_s == pytest.approx(2.9)
    assert (measures.different, measures.not_back, measures.exits) == (0, 0, [])


def test_problems_of_a_storm() -> None:
    whole = measure(record(), SETUP)
    seeds = [whole, replace(whole, loss=0.3)]
    assert problems(whole, whole, seeds) == []
    bad: Measures = replace(whole, synchronisations=3, different=2, exits=[1], loss=0.4)
    share, models, exits, loss = problems(whole, bad, seeds)
    assert share.startswith("75.0% of the synchronisations")
    assert "2 synchronisations" in models and "[1]" in exits and "0.40000" in loss
