"""Buffers of the global model: real and complex ones are averaged, others are those of rank 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hier.parameter_server.live_collectives import Contribution, LiveCollectives
from lightning_hier.parameter_server.message import NO_PAYLOAD, Kind, Limits, Message
from lightning_hier.parameter_server.wire import encode
from lightning_hier.strategies.global_buffers import GlobalBuffers
from tests.unit.local_ports import LocalNetwork
from tests.unit.test_live_collectives import gather_on_all


def _module(rank: int) -> nn.Module:
    module = nn.BatchNorm1d(3)
    module.running_mean.fill_(float(rank))
    module.register_buffer("rotation", torch.tensor([[0.5 + 2.0j, -1.0j]]) * (rank + 1))
    module.register_buffer("seed", torch.tensor(2**60 + 1 + rank))
    module.register_buffer("mask", torch.tensor([True, False, rank == 0]))
    module.register_buffer("halves", torch.full((3,), 1.0 + rank, dtype=torch.bfloat16))
    return module


def _global_buffers(rank: int, collectives: LiveCollectives) -> dict[str, Tensor]:
    module = _module(rank)
    own = {name: value.clone() for name, value in module.named_buffers()}
    buffers = GlobalBuffers(module, collectives)
    buffers.swap_in()
    swapped_in = {name: value.clone() for name, value in module.named_buffers()}
    buffers.swap_back()
    assert all(torch.equal(own[name], value) for name, value in module.named_buffers())
    return swapped_in


def test_real_and_complex_buffers_are_averaged_and_others_are_those_of_rank_0() -> None:
    first = dict(_module(0).named_buffers())
    expected = first | {
        "running_mean": torch.full((3,), 0.5),
        "halves": torch.full((3,), 1.5, dtype=torch.bfloat16),
        "rotation": torch.tensor([[0.75 + 3.0j, -1.5j]]),
    }
    for swapped_in in gather_on_all(LocalNetwork(2), _global_buffers):
        for name, value in expected.items():
            assert torch.equal(swapped_in[name], value), name


class _Wired(LiveCollectives):
    """Collectives of one rank that encode their messages for the wire."""

    def __init__(self) -> None: ...

    def all_gather(
        self, value: Any = None, payload: Tensor = NO_PAYLOAD
    ) -> dict[int, Contribution]:
        encode(Message(Kind.CONTRIBUTION, 0, 0, {"value": value}, payload), 1, Limits())
        return {0: Contribution(value, payload)}


def test_booleans_are_gathered_and_reduced() -> None:
    """Masks in ``LightningModule.all_gather`` and states of metrics are boolean."""
    mask = torch.tensor([[True], [False]])
    live = _Wired()
    [gathered] = live.gather(mask)
    assert gathered.dtype == torch.bool and torch.equal(gathered, mask)
    assert torch.equal(live.reduce(mask, "max"), mask)
