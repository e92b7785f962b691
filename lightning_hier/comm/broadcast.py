"""Broadcast of many tensors, in place, as one message for each dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hier.comm.channel import Channel
from lightning_hier.comm.flat import FlatView


def by_dtype(tensors: Sequence[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """Tensors grouped by dtype; groups in an order that is the same on all ranks."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in sorted(tensors, key=lambda tensor: str(tensor.dtype)):
        groups.setdefault(tensor.dtype, []).append(tensor)
    return groups


def broadcast_tensors_(tensors: Sequence[Tensor], channel: Channel, kind: str) -> None:
    """Give every rank of ``channel`` the values of its first rank.

    A collective of the channel. Tensors that occur twice are sent once.
    """
    if channel.size == 1:
        return
    distinct = list({id(tensor): tensor.detach() for tensor in tensors}.values())
    for dtype, same in by_dtype(distinct).items():
        view = FlatView(same)
        # gloo does not broadcast booleans; copying into bytes and back keeps them.
        wire = torch.uint8 if dtype == torch.bool else dtype
        flat = torch.empty(len(view), dtype=wire, device=same[0].device)
        view.read_(0, len(view), flat)
        channel.broadcast_(flat, kind).wait()
        view.write_from(flat)
