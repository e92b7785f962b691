"""Differences between ranks are told with the setting, the values and the ranks."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.comm.agreement import difference, gather_json, raise_everywhere


def test_equal_settings_are_no_problem() -> None:
    assert difference([{"a": 1, "b": [1, 2]}] * 4) is None
    assert difference([]) is None


def test_difference_names_setting_values_and_ranks() -> None:
    said = difference([{"block_size": 4, "c": 1}] * 2 + [{"block_size": 5, "c": 1}] * 2)
    assert said is not None
    assert "block_size: 4 on ranks 0, 1; 5 on ranks 2, 3" in said
    assert "c:" not in said


def test_every_difference_is_told_at_once() -> None:
    said = difference([{"a": 1, "b": "x"}, {"a": 2, "b": "x"}, {"a": 1, "b": "y"}])
    assert said is not None
    assert "a: 1 on ranks 0, 2; 2 on rank 1" in said
    assert 'b: "x" on ranks 0, 1; "y" on rank 2' in said


def test_setting_that_a_rank_lacks_is_a_difference() -> None:
    said = difference([{"weight": "(4,)"}, {}])
    assert said is not None
    assert 'weight: "(4,)" on rank 0; null on rank 1' in said


def test_one_process_agrees_with_itself() -> None:
    cpu = torch.device("cpu")
    assert gather_json({"a": (1, 2)}, cpu) == [{"a": [1, 2]}]
    with raise_everywhere(cpu):
        pass
    with pytest.raises(ValueError, match="^no good$"), raise_everywhere(cpu):
        raise ValueError("no good")
