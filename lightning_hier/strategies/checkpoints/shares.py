"""Shares of the global model that the ranks of a group have saved, put together and cut anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hier.comm.blocks.model_block import ModelBlock

Shares = Sequence[Sequence[Sequence[Mapping[str, Any]]]]
"""What each rank of a group has saved of its blocks, in order: of each block the parts."""


def joined(shares: Sequence[Mapping[str, Any]], name: str) -> Tensor | None:
    """A flat tensor of one part, whole; None where none is kept.

    Args:
        shares: of the ranks of a group, in order.
        name: as in :meth:`Fragment.state`.

    """
    own = [share[name] for share in shares if share.get(name) is not None]
    return torch.cat(own) if own else None


def cut_for(blocks: Sequence[ModelBlock], shares: Shares) -> list[list[dict[str, Any]]]:
    """What this rank would have saved if its group had divided the model as it does now."""
    return [
        [_cut([rank[index][i] for rank in shares], own) for i, own in enumerate(block.state())]
        for index, block in enumerate(blocks)
    ]


def can_be_cut(kinds: Mapping[str, Any]) -> bool:
    """Whether no error feedback and no update in flight is kept by share besides."""
    return not kinds["overlap"] and kinds["across_dtype"] in (None, "same")


def _cut(shares: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(shares[0])
    for name, present in own.items():
        whole = joined(shares, name) if isinstance(present, Tensor) else None
        if whole is not None:
            start = own["carried_start" if name == "previous" else "start"]
            found[name] = whole[start : start + present.numel()]
    return found
