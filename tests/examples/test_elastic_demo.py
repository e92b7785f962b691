"""Tests of the log of the demo of groups that leave and join, and of the comparison of models."""

from __future__ import annotations

from examples.elastic.demo import different_models
from examples.elastic.step_log import Line


def block(number: int, digest: str) -> Line:
    return Line("block", 7, number, 0.0, 1.0, digest)


def test_models_are_compared_where_groups_have_taken_part() -> None:
    lines = [block(20, "a"), block(40, "b"), Line("end", 7, 41, 1.0, digest="c")]
    assert different_models([lines, [lines[0], lines[2]]]) == []
    assert different_models([lines, [block(40, "x"), Line("end", 8, 41, 1.0, digest="y")]]) == [
        "block 40",
        "end 41",
    ]
