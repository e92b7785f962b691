"""Overlapped synchronisation: order of collectives."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_hier import BMUF, HierarchicalStrategy
from lightning_hier.algorithms import chunks
from lightning_hier.comm.channel import Channel
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights

SLOW = 1


def _sync(across_dtype: Any) -> BMUF:
    """BMUF with overlap and an ``across_dtype``, or with "sparse" updates."""
    settings: Any = {"across_dtype": across_dtype}
    if across_dtype == "sparse":
        settings = {"across_dtype": "int8", "across_density": 0.3}
    return BMUF(block_momentum=0.5, overlap=True, block_size=50, **settings)


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
        _order(size, dtype, late=late) for size, dtype in ((1, "sparse"), (2, "same"), (2, "int8"))
    ]


def test_order_of_all_collectives_is_the_same_on_ranks_of_different_pace() -> None:
    """Models and gradients on two hosts. On one rank, no collective is complete before a wait."""
    late, prompt = (run_ranks(_orders, 4, rank, ranks_per_node=2) for rank in (SLOW, -1))
    for number in range(3):
        for rank in range(4):
            order, model = late[rank][number]
            assert sum(kind.startswith("models") for _, kind in order) > 20
            # The rank at the same position on the other host takes part in the same collectives.
            for own in (prompt[rank], late[(rank + 2) % 4]):
                assert own[number][0] == order
                assert torch.equal(own[number][1], model)
            assert ("group", "gradients") in order or number < 1
