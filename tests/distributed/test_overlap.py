"""Overlapped synchronisation: order and start of collectives, unfreezing, and model distances."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_hier import BMUF, HierarchicalStrategy
from lightning_hier.algorithms import chunks
from lightning_hier.comm.channel import Channel
from tests.distributed.blocks import end_block, make_blocks
from tests.distributed.gradients import open_world
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights

SLOW = 1


class _Net(nn.Module):
    """A module with parameters of two dtypes and a buffer of a third."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Parameter(torch.zeros(90))
        self.wide = nn.Parameter(torch.zeros(90, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(5, dtype=torch.complex64))


def _sync(across_dtype: Any) -> BMUF:
    """BMUF with overlap and an ``across_dtype``, or with "sparse" updates."""
    settings: Any = {"across_dtype": across_dtype}
    if across_dtype == "sparse":
        settings = {"across_dtype": "int8", "across_density": 0.3}
    return BMUF(block_momentum=0.5, overlap=True, block_size=50, **settings)


def _train_(tensors: Sequence[Tensor], turn: int, group: int = 1) -> None:
    """Add random values to a model, which differ between groups and turns."""
    generator = torch.Generator().manual_seed(100 * turn + dist.get_rank() // group)
    with torch.no_grad():
        for own in tensors:
            own.add_(torch.randn(own.shape, dtype=own.dtype, generator=generator))


@torch.no_grad()
def _started() -> list[int]:
    """Number of collectives of models that have started when the end of a block returns."""
    counts = []
    for across_dtype in ("same", "int8", "sparse"):
        module = nn.ModuleList([nn.Linear(3, 3)])
        (block,) = make_blocks(module, open_world(1, host_of=[0, 0, 0, 0]), _sync(across_dtype))
        with mock.patch.object(
            Channel, "_starting", autospec=True, side_effect=Channel._starting
        ) as start:
            end_block(block)
        counts.append([call.args[1] for call in start.call_args_list].count("models"))
    return counts


def test_overlapped_mean_starts_at_the_end_of_its_block() -> None:
    """A quantised mean has then started the first of its two collectives."""
    for started in run_ranks(_started, 4):
        assert started == [1, 1, 1]


Order = list[tuple[str, str]]


def _order(group_size: int, across_dtype: Any, *, late: bool) -> tuple[Order, Tensor]:
    """All collectives of this rank in a run, and the final model."""
    order: Order = []
    start = Channel._starting

    def recorded(channel: Channel, kind: str, payload_bytes: float) -> Any:
        order.append((channel.tier, kind))
        return start(channel, kind, payload_bytes)

    model = Net()
    sync = replace(_sync(across_dtype), block_size=4, across="sharded", block_momentum="auto")
    strategy = HierarchicalStrategy(group_size=group_size, block_sync=sync, warmup_steps=1)
    never_complete = mock.patch.object(dist.Work, "is_completed", lambda work: False)
    with (
        mock.patch.object(Channel, "_starting", recorded),
        mock.patch.multiple(chunks, EXCHANGED=4, EXCHANGED_ON_HOST=4),
        never_complete if late else nullcontext(),
    ):
        fit(strategy, 14, model)
    return order, weights(model)


def _orders(late_rank: int) -> list[tuple[Order, Tensor]]:
    late = int(os.environ["RANK"]) == late_rank
    return [
        _order(size, dtype, late=late) for size in (1, 2) for dtype in ("same", "int8", "sparse")
    ]


def test_order_of_all_collectives_is_the_same_on_ranks_of_different_pace() -> None:
    """Models and gradients on two hosts. On one rank, no collective is complete before a wait."""
    late, prompt = (run_ranks(_orders, 4, rank, ranks_per_node=2) for rank in (SLOW, -1))
    for number in range(6):
        for rank in range(4):
            order, model = late[rank][number]
            assert sum(kind.startswith("models") for _, kind in order) > 20
            # The rank at the same position on the other host takes part in the same collectives.
            for own in (prompt[rank], late[(rank + 2) % 4]):
                assert own[number][0] == order
                assert torch.equal(own[number][1], model)
            assert ("group", "gradients") in order or number < 3


@torch.no_grad()
def _unfrozen() -> list[float]:
    """Parameters of an optimizer that are frozen in its first block, after three more blocks."""
    module = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    trained = set(module[0].parameters())
    communicators = open_world(1, host_of=[0, 0, 0, 0])
    _, block = make_blocks(module, communicators, _sync("same"), trained)
    assert not block.members.tensors and end_block(block).update_norm == 0.0
    for own in module[1].parameters():
        own.fill_(1.0)
    block = block.regrown(replace(block.members, parameters=list(module[1].parameters())))
    for turn in range(3):
        if turn == 0:
            for own in block.members.parameters:
                own.add_(dist.get_rank())
        end_block(block)
    return [float(own.mean()) for own in block.members.parameters]


def test_global_model_of_unfrozen_parameters_starts_from_their_values() -> None:
    """The values start at 1. The mean of 0 to 3 is added, then 0.75 and 0.375 by block momentum."""
    for means in run_ranks(_unfrozen, 4):
        assert means == pytest.approx([1 + 1.5 + 0.75 + 0.375] * 2)


def _squared_distance(tensors: Sequence[Tensor]) -> float:
    """Mean squared distance of the ranks' tensors from their mean."""
    own = torch.cat([torch.view_as_real(t + 0j).double().reshape(-1) for t in tensors])
    mean = own.clone()
    dist.all_reduce(mean)
    square = (own - mean / dist.get_world_size()).square().sum()
    dist.all_reduce(square)
    return float(square) / dist.get_world_size()


@torch.no_grad()
def _distances(group: int) -> list[tuple[float, float]]:
    """Distance that the next block reports, and expected distance, of all blocks but the last."""
    module = nn.ModuleList([_Net()])
    module[0].mean.fill_(10.0)
    (block,) = make_blocks(module, open_world(group, host_of=[0, 0, 0, 0]), _sync("same"))
    reported, expected = [], []
    for turn in range(4):
        before = [own.clone() for own in block.members.parameters]
        _train_(block.members.tensors, turn, group)
        moved = [own - old for own, old in zip(block.members.parameters, before, strict=True)]
        expected.append(_squared_distance([*moved, *block.members.float_buffers]) ** 0.5)
        reported.append(end_block(block, groups=4 // group).model_distance)
    assert reported[0] == 0.0
    return list(zip(reported[1:], expected[:-1], strict=True))


def _of_groups() -> list[tuple[float, float]]:
    return [*_distances(1), *_distances(2)]


def test_reported_distance_is_that_of_the_block_whose_update_is_applied() -> None:
    """The distance is that of parameters and averaged buffers of the same block."""
    for distances in run_ranks(_of_groups, 4):
        assert len(distances) == 6
        for reported, expected in distances:
            assert reported == pytest.approx(expected, rel=1e-6)
