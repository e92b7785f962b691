"""Rank layouts: sizes that divide, and hosts."""

from __future__ import annotations

import pytest

from lightning_hier.comm.tiers import RankLayout, by_host


@pytest.mark.parametrize("group_size", [0, -1, 3, 13])
def test_error_of_a_size_that_does_not_divide_lists_the_sizes_that_do(group_size: int) -> None:
    with pytest.raises(ValueError, match="sizes that do: 1, 2, 4$") as caught:
        RankLayout.two_tiers(group_size, 4)
    assert f"group_size={group_size}" in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "host_of", "hosts"),
    [
        ([0, 1, 2, 3], [0, 0, 1, 1], [[0, 1], [2, 3]]),
        ([0, 1, 2], [0, 1, 1], [[0], [1, 2]]),
        ([0, 2, 4], [0, 0, 1, 1, 2, 2], [[0], [2], [4]]),
        ([0, 1, 2], [0, 0, 0], [[0], [1], [2]]),
        ([0], [0], [[0]]),
    ],
)
def test_ranks_are_divided_by_host(
    ranks: list[int], host_of: list[int], hosts: list[list[int]]
) -> None:
    assert by_host(ranks, host_of) == hosts
