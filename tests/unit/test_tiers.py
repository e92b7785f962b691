"""Rank layouts: groups of each tier, and the routes of averages across groups and hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.comm.across import build_route, by_host
from lightning_hier.comm.tiers import RankLayout

two_tiers = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(sizes=two_tiers)
def test_ranks_of_a_group_differ_only_in_the_coordinate_of_its_tier(sizes: tuple[int, int]) -> None:
    layout = RankLayout(sizes)
    for tier, size in enumerate(sizes):
        for group in layout.groups(tier):
            coordinates = [layout.coordinates(rank) for rank in group]
            assert [own[tier] for own in coordinates] == list(range(size))
            assert len({own[1 - tier] for own in coordinates}) == 1


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


@pytest.mark.parametrize("group", [1, 2, 4])
def test_every_rank_has_one_route_and_all_create_the_same_groups(group: int) -> None:
    layout, host_of = RankLayout.two_tiers(group, 8), [0, 0, 0, 0, 1, 1, 1, 1]
    created: list[list[tuple[list[int], str]]] = []
    for rank in range(8):
        own: list[tuple[list[int], str]] = []

        def make(ranks: Sequence[int], name: str, rank: int = rank, own: Any = own) -> Any:
            own.append((list(ranks), name))
            return tuple(ranks) if rank in ranks else None

        route: Any = build_route(layout, host_of, make)
        created.append(own)
        assert route.inter_host_ranks == 2
        assert not route.one_host
        peers = next(own for own in layout.groups(1) if rank in own)
        home = tuple(other for other in peers if host_of[other] == host_of[rank])
        assert route.host == (home if len(home) > 1 else None)
        firsts = tuple(min(r for r in peers if host_of[r] == host) for host in (0, 1))
        assert route.between == (firsts if rank in firsts else None)
    assert all(own == created[0] for own in created)
