"""Rank layouts: groups of each tier, sizes that divide, and hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.comm.across import by_host
from lightning_hier.comm.tiers import RankLayout

two_tiers = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(sizes=two_tiers)
def test_device_mesh_of_the_grid_has_the_same_groups(sizes: tuple[int, int]) -> None:
    layout = RankLayout(sizes)
    grid = layout.grid()
    for tier, size in enumerate(sizes):
        dimension = len(sizes) - 1 - tier
        rows = grid.movedim(dimension, -1).reshape(-1, size).tolist()
        assert sorted(rows) == sorted(layout.groups(tier))


@pytest.mark.parametrize("group_size", [0, -1, 3, 5, 7, 13])
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
