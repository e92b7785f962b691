"""The mean over the groups of a flat piece of their models: exactly, or in a short form."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.quantisation import BLOCK, BFloat16Coder, Coder, Int8Coder
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.stages import Stages

AcrossDtype = Literal["same", "bfloat16", "int8"]
"""In what form models travel between groups."""

_KIND = "models"
_AT_HOME = "models_on_host"

_STAGES = 4


def make_coder(across_dtype: AcrossDtype) -> Coder | None:
    """What shortens the update of a model; None sends it as it is."""
    return {"same": None, "bfloat16": BFloat16Coder(), "int8": Int8Coder()}[across_dtype]


class Averaging:
    """Sums pieces over the groups, chunk by chunk, along a route.

    All work has the same four stages on every rank: at home, twice between hosts, at home again.

    Args:
        route: who exchanges with whom.

    """

    def __init__(self, route: AcrossRoute) -> None:
        self._route = route

    def exact(self, piece: Tensor) -> Stages:
        """Sum ``piece`` over the groups, in place. A collective of the ranks that average."""
        if not piece.numel():
            yield from _nothing()
            return
        route = self._route
        yield [route.host.reduce_(piece, _AT_HOME)] if route.host else []
        yield [route.between.all_reduce_(piece, _KIND)] if route.between else []
        yield []
        yield [route.host.broadcast_(piece, _AT_HOME)] if route.host else []

    def coded(self, piece: Tensor, coder: Coder, leftover: Leftover | None) -> Stages:
        """Sum ``piece`` over the groups, in place, in a short form and up to what is left over.

        In two steps, of which each costs what one half of a ring costs: every host gets an equal
        shard of the piece from all others, adds them up, and hands the sum to all. Both steps
        round, and both keep their error. All groups get the same bits. A collective of the ranks
        that average.

        Args:
            piece: 1-D.
            coder: the short form.
            leftover: what earlier sums have left over here of this piece; added, and replaced by
                what this sum leaves over. None keeps nothing.

        """
        if not piece.numel():
            yield from _nothing()
            return
        host, between = self._route.host, self._route.between
        yield [host.reduce_(piece, _AT_HOME)] if host else []
        if between is None:
            yield from ([], [])
        else:
            yield from _coded_between(piece, coder, leftover, between)
        yield [host.broadcast_(piece, _AT_HOME)] if host else []


def _coded_between(
    piece: Tensor, coder: Coder, leftover: Leftover | None, between: Channel
) -> Stages:
    own = slice(0, piece.numel())
    each = shard_length(piece.numel(), between.size)
    work = piece.new_zeros(between.size * each, dtype=_wide(piece.dtype))
    shape = (between.size, coder.bytes_for(each))
    sent, received = (torch.empty(shape, dtype=torch.uint8, device=piece.device) for _ in range(2))
    work[own].copy_(piece)
    if leftover is not None:
        work[own].add_(leftover.own)
    for values, row in zip(work.split(each), sent, strict=True):
        coder.encode_(values, row)
    if leftover is not None:
        leftover.own.copy_(work[own])
    yield [between.all_to_all(received.view(-1), sent.view(-1), _KIND)]
    total = work[:each].zero_() if leftover is None else work[:each].copy_(leftover.sums)
    for row in received:
        coder.decode(row, total, add=True)
    coder.encode_(total, sent[0])
    if leftover is not None:
        leftover.sums.copy_(total)
    yield [between.all_gather(received.view(-1), sent[0], _KIND)]
    for values, row in zip(work.split(each), received, strict=True):
        coder.decode(row, values)
    piece.copy_(work[own])


def _nothing() -> Stages:
    for _ in range(_STAGES):
        yield []


class Leftover:
    """What rounding has left over of one piece: of what this rank sends, and of what it sums up."""

    def __init__(self, own: Tensor, sums: Tensor) -> None:
        """Views of where it is kept: ``own`` as long as the piece, ``sums`` as long as a shard."""
        self.own = own
        self.sums = sums


def shard_length(numel: int, lanes: int) -> int:
    """Elements of a shard when ``numel`` are divided among so many ranks, in whole blocks."""
    return -(-numel // (lanes * BLOCK)) * BLOCK


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
