"""Checks of the numbers of batches of ranks and groups."""

from __future__ import annotations

from math import inf

import pytest

from lightning_hier.strategies.data_checks import check_even, check_joined


def _join(counts: list[float], group_size: int = 1, warmup: int = 0, accumulated: int = 1) -> str:
    try:
        check_joined(counts, group_size=group_size, warmup_steps=warmup, accumulated=accumulated)
    except ValueError as error:
        return str(error)
    return ""


def test_ranks_are_named_by_their_counts() -> None:
    named = "4 on ranks 0, 2; an unknown number on rank 1; 2 on rank 3."
    with pytest.raises(ValueError, match=named):
        check_even([4.0, inf, 4.0, 2.0])


def test_groups_may_differ_and_their_ranks_may_not() -> None:
    assert _join([4, 4, inf, inf], 2) == ""
    assert "in groups of 2" in _join([4, 5, 5, 4], 2)
    assert "an unknown number on rank 1" in _join([4, inf], 2)
