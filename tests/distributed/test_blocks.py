"""End of a block with a single group, which does not change its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hier import ModelAveraging
from tests.distributed.blocks import end_block, make_blocks
from tests.distributed.gradients import open_world
from tests.ranks import run_ranks

ONE_HOST: Sequence[int] = [0, 0, 0, 0]


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


def _both() -> list[list[tuple[Tensor, Tensor]]]:
    open_world(4, host_of=ONE_HOST)
    return [_moved("int8"), _moved("bfloat16")]


def test_a_single_group_does_not_change() -> None:
    for moved in run_ranks(_both, 4):
        for own in moved:
            assert all(torch.equal(before, after) for before, after in own)
