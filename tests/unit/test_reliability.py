"""The soak benchmark: starts and steps in an event log, lost steps, tables, and failures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks.reliability.event_log import Entry
from benchmarks.reliability.records import FaultRecord, Records, RunRecord, table
from benchmarks.reliability.soak import _differences
from benchmarks.reliability.watch import attempts, reached


def _write(folder: Path, *entries: Entry, cut_off: str = "") -> None:
    lines = [json.dumps(asdict(entry)) + "\n" for entry in entries]
    (folder / "events.jsonl").write_text("".join(lines) + cut_off)


def _start(rank: int, pid: int, steps: int, time_s: float, world: int = 2) -> Entry:
    return Entry("start", rank, pid, world, steps, time_s)


def _step(pid: int, steps: int, time_s: float) -> Entry:
    return Entry("step", 0, pid, 2, steps, time_s)


def test_starts_of_a_run_are_separated_and_their_ranks_grouped(tmp_path: Path) -> None:
    _write(
        tmp_path,
        _start(1, 11, 0, 1.0),
        _start(0, 10, 0, 1.1),
        _step(10, 1, 2.0),
        _step(10, 2, 3.0),
        _start(0, 20, 1, 9.0),
        _step(20, 2, 9.5),
        _start(1, 21, 1, 9.1),
        cut_off='{"event": "st',
    )
    first, second = attempts(tmp_path)
    assert (first.pids, second.pids) == ((10, 11), (20, 21))
    assert (first.begun_at, second.begun_at) == (0, 1)
    assert reached(tmp_path, first) - second.begun_at == 1
    step = second.first_step_after(4.0)
    assert step is not None and step.time_s == 9.5
    assert second.first_step_after(9.6) is None


def _run(*, differences: list[str] | None, agree: bool = True) -> RunRecord:
    return RunRecord("bmuf", [2], 3, differences, agree, 0, 10.0)


@pytest.mark.parametrize(
    ("run", "hangs", "good"),
    [
        (_run(differences=[]), [], True),
        (_run(differences=None), [], True),
        (_run(differences=["net.0.weight"]), [], False),
        (_run(differences=None, agree=False), [], False),
        (_run(differences=[]), ["no step"], False),
    ],
)
def test_conditions_of_a_failed_soak(run: RunRecord, hangs: list[str], good: bool) -> None:
    assert Records("soak", 1, runs=[run], hangs=hangs).good == good


def test_tables(tmp_path: Path) -> None:
    faults = [FaultRecord("kill", "bmuf", 2, 2, lost, 10.0 * lost) for lost in (1, 2, 3)]
    records = Records("soak", 1, faults=faults, runs=[_run(differences=[])])
    records.write(tmp_path / "soak.json")
    assert "| kill | 3 | 3 | 2 (3) | 20.0 (30.0) |" in table(records)
    assert "| bmuf | 1 | 3 | 1 of 1 | 0 of 0 |" in table(records)
    assert json.loads((tmp_path / "soak.json").read_text())["versions"]["torch"]


def test_changed_bits_and_nonfinite_values_are_differences() -> None:
    one = {"same": torch.ones(3), "other": torch.ones(3), "nan": torch.full((2,), torch.nan)}
    other = {**one, "other": torch.nextafter(torch.ones(3), torch.zeros(3))}
    assert _differences(one, other) == ["other", "nan"]
