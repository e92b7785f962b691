"""End of a block with a single group, and with an excluded first group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_hier import ModelAveraging
from lightning_hier.comm.blocks.health import ModelHealth, Participation
from lightning_hier.comm.blocks.schedule import DueFragments
from tests.distributed.blocks import agree, end_block, make_blocks
from tests.distributed.gradients import open_world
from tests.ranks import run_ranks

ONE_HOST: Sequence[int] = [0, 0, 0, 0]


class _Counting(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("count", torch.tensor(dist.get_rank()))


@torch.no_grad()
def _counts() -> list[int]:
    """An integer buffer after a block and after an evaluation without the first group."""
    groups = dist.get_rank() // 2

    def without_the_first(reading: ModelHealth) -> Participation:
        participation = agree(reading, groups=1)
        return replace(participation, excluded=(0,), takes_part=groups == 1, first=1)

    counts = []
    for evaluates in (False, True):
        module = nn.ModuleList([_Counting()])
        (block,) = make_blocks(
            module, open_world(2, host_of=ONE_HOST), ModelAveraging(block_size=50)
        )
        block.count_step()
        if evaluates:
            block.write_global_model(without_the_first(block.read()))
        else:
            block.synchronise(DueFragments(0, 0), without_the_first(block.read(0)))
        counts.append(int(module.get_buffer("0.count")))
    return counts


@torch.no_grad()
def _moved(across_dtype: Any) -> list[tuple[Tensor, Tensor]]:
    """Parameters of a single group before and after the end of a block."""
    module = nn.ModuleList([nn.Linear(70, 9)])
    sync = ModelAveraging(block_size=50, across_dtype=across_dtype)
    (block,) = make_blocks(module, open_world(4, host_of=ONE_HOST), sync)
    for own in module.parameters():
        own.copy_(torch.randn(own.shape, generator=torch.Generator().manual_seed(1)))
    before = [own.clone() for own in module.parameters()]
    end_block(block, groups=1)
    return list(zip(before, (own.detach() for own in module.parameters()), strict=True))


def _both() -> tuple[list[int], list[list[tuple[Tensor, Tensor]]]]:
    open_world(4, host_of=ONE_HOST)
    return _counts(), [_moved("int8"), _moved("bfloat16")]


def test_integer_buffers_are_those_of_a_finite_group_and_a_single_group_does_not_change() -> None:
    for counts, moved in run_ranks(_both, 4):
        assert counts == [2, 2]
        for own in moved:
            assert all(torch.equal(before, after) for before, after in own)
