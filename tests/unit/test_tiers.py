"""Rank layouts: the groups of every tier partition the ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.comm.tiers import RankLayout

two_tiers = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(sizes=two_tiers)
def test_group_differs_in_the_coordinate_of_its_tier_alone(sizes: tuple[int, int]) -> None:
    layout = RankLayout(sizes)
    for tier, size in enumerate(sizes):
        for group in layout.groups(tier):
            coordinates = [layout.coordinates(rank) for rank in group]
            assert [own[tier] for own in coordinates] == list(range(size))
            assert len({own[1 - tier] for own in coordinates}) == 1


@given(sizes=two_tiers)
def test_coordinates_are_those_of_the_grid(sizes: tuple[int, int]) -> None:
    layout = RankLayout(sizes)
    for rank in range(layout.world_size):
        position, group = layout.coordinates(rank)
        assert layout.grid()[group, position] == rank


@given(sizes=two_tiers)
def test_grid_shows_a_device_mesh_the_same_groups(sizes: tuple[int, int]) -> None:
    layout = RankLayout(sizes)
    grid = layout.grid()
    for tier, size in enumerate(sizes):
        dimension = len(sizes) - 1 - tier
        rows = grid.movedim(dimension, -1).reshape(-1, size).tolist()
        assert sorted(rows) == sorted(layout.groups(tier))


@pytest.mark.parametrize("group_size", [0, -1, 3, 5, 7, 13])
def test_size_that_does_not_divide_is_refused_with_the_sizes_that_do(group_size: int) -> None:
    with pytest.raises(ValueError, match="sizes that do: 1, 2, 4$") as caught:
        RankLayout.two_tiers(group_size, 4)
    assert f"group_size={group_size}" in str(caught.value)
