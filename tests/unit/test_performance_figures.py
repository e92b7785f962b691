"""Arithmetic of the performance benchmark: figures, wire time, and the result store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.performance.figures import figures
from benchmarks.performance.short import regressions
from benchmarks.performance.store import Store


def reading(host: int, steps_s: list[float], **other: Any) -> dict[str, Any]:
    return {
        "host": host,
        "goodput": 1e8,
        "control_s": [0.1, 0.3],
        "steps_s": steps_s,
        "sent_bytes": [100.0] * len(steps_s),
        "extra_peak_bytes": 1000,
        "metrics": {},
        **other,
    }


def test_steps_at_the_end_of_a_block_are_separated_from_those_between() -> None:
    own = figures([reading(0, [0.2, 0.2, 0.2, 1.4]), reading(1, [0.2, 0.2, 0.2, 1.4])], 2)
    assert own.step_s == pytest.approx(0.5)
    assert own.between_s == pytest.approx(0.2)
    assert own.synchronisation_s == pytest.approx(0.6)  # the mean of 0 and 1.2 above the others
    assert own.control_s == pytest.approx(0.2)
    assert own.ratio == pytest.approx(2.5)
    assert own.communication_share == pytest.approx(0.6)


def test_store_continues_after_a_truncated_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    store = Store(path)
    assert store.lines() == []
    store.add("a", {"value": 1})
    with path.open("a") as file:
        file.write('{"key": "b", "val')
    assert "a" in store and "b" not in store
    store.add("c", {"value": 3})
    assert [line["key"] for line in store.lines()] == ["a", "c"]
    path.write_text('broken\n{"key": "d"}\n')
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        store.lines()


def test_short_benchmark_reports_regressions_of_more_than_a_third() -> None:
    committed = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert regressions({"a": 1.3, "b": 1.4, "c": 0.2}, committed) == ["b"]
    assert regressions({"new": 0.1}, committed) == ["new"]
