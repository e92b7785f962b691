"""Rules of PSP-SGD: the quorums c and b, and the shards."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import optim
from torch.nn import Parameter

from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.parameter_server.shards import plan_shards


@pytest.mark.parametrize(
    ("min_pushes", "workers", "needed"),
    [("all", 7, 7), (3, 7, 3), (1, 7, 1), (1.0, 7, 7), (0.5, 7, 4), (0.9, 32, 29), (0.1, 30, 3)],
)
def test_pushes_needed_by_c(min_pushes: Any, workers: int, needed: int) -> None:
    assert PSPSettings(min_pushes=min_pushes).needed_pushes(workers) == needed


@pytest.mark.parametrize(("b", "shards", "needed"), [(1.0, 5, 5), (0.9, 32, 29), (0.01, 4, 1)])
def test_shards_needed_by_b(b: float, shards: int, needed: int) -> None:
    assert PSPSettings(min_pulled=b).needed_shards(shards) == needed


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@given(SIZES, SIZES, st.integers(1, 8), st.data())
def test_every_trained_parameter_is_in_one_shard_and_shards_are_balanced(
    first: list[int], second: list[int], world_size: int, data: st.DataObject
) -> None:
    optimizers, trained = [], []
    for sizes in (first, second):
        own = [Parameter(torch.zeros(size)) for size in sizes]
        frozen = data.draw(st.sets(st.integers(0, len(own) - 1)))
        for index in frozen:
            own[index].requires_grad_(False)
        optimizers.append(optim.SGD(own, lr=0.1))
        trained.append({index for index in range(len(own)) if index not in frozen})
    shards = plan_shards(optimizers, world_size)
    assert [shard.number for shard in shards] == list(range(2 * world_size))
    assert [shard.home for shard in shards] == 2 * list(range(world_size))
    for number, (optimizer, expected) in enumerate(zip(optimizers, trained, strict=True)):
        places = {p: index for index, p in enumerate(optimizer.param_groups[0]["params"])}
        indices = [
            [places[p] for p in shard.parameters] for shard in shards if shard.optimizer == number
        ]
        assert sorted(chain(*indices)) == sorted(expected)
        assert all(own == sorted(own) for own in indices)
    loads = [sum(s.size for s in shards if s.home == rank) for rank in range(world_size)]
    assert max(loads) - min(loads) <= max(first + second)


def test_shard_of_several_dtypes_is_sent_in_the_widest_and_restored() -> None:
    own = [Parameter(torch.randn(4, dtype=d)) for d in (torch.float16, torch.bfloat16)]
    (shard,) = plan_shards([optim.SGD(own, lr=0.1)], 1)
    assert (shard.dtype, shard.size) == (torch.float32, 8)
    flat = torch.cat([one.detach().float() for one in own])
    for one, tensor in zip(own, shard.tensors(flat), strict=True):
        assert one.dtype == tensor.dtype and torch.equal(one, tensor)
