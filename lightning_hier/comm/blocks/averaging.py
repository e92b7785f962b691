"""The mean over the groups of a flat piece of their models: exactly, or in a short form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels.reference import QUANTISATION_GROUP
from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec, Int8Codec
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.stages import Due, Stages

AcrossDtype = Literal["same", "bfloat16", "int8"]
"""In what form models travel between groups."""

_KIND = "models"
_AT_HOME = "models_on_host"

_STAGES = 6


def make_coder(across_dtype: AcrossDtype, dtype: torch.dtype) -> Codec | None:
    """What shortens the update of a model; None sends it as it is, as all that is not real."""
    if not dtype.is_floating_point:
        return None
    return {"same": None, "bfloat16": BFloat16Codec(), "int8": Int8Codec()}[across_dtype]


class Averaging:
    """Sums pieces over the groups, chunk by chunk, along a route.

    All work has the same stages on every rank: at home, twice between hosts, at home again. What
    goes between hosts is waited for a round later than it could be, so that the link always has the
    next chunk to carry.

    Args:
        route: who exchanges with whom.

    """

    def __init__(self, route: AcrossRoute) -> None:
        self._route = route

    def due(self, coder: Codec | None) -> int:
        """How many :class:`~lightning_hier.comm.stages.Due` a chunk yields, in a form or exactly.

        What goes between hosts, and what comes back from there to the other ranks of a host.
        """
        return (1 if coder is None else 2) + self._route.at_home

    def exact(self, piece: Tensor) -> Stages:
        """Sum ``piece`` over the groups, in place. A collective of the ranks that average."""
        if not piece.numel():
            yield from _nothing()
            return
        route = self._route
        yield [route.host.reduce_(piece, _AT_HOME)] if route.host else []
        sent = [route.between.all_reduce_(piece, _KIND)] if route.between else []
        yield []
        yield Due(sent)
        yield []
        yield []
        yield self._come_home(piece)

    def _come_home(self, piece: Tensor) -> Sequence[Pending]:
        host = self._route.host
        started = [host.broadcast_(piece, _AT_HOME)] if host else []
        return Due(started) if self._route.at_home else started

    def coded(
        self, piece: Tensor, coder: Codec, leftover: Leftover | None, *, weight: float = 1.0
    ) -> Stages:
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
            weight: by which every summand is multiplied.

        """
        if not piece.numel():
            yield from _nothing()
            return
        host, between = self._route.host, self._route.between
        yield [host.reduce_(piece, _AT_HOME)] if host else []
        if between is None and host is None:
            piece.mul_(weight)
        if between is None:
            yield from ([], Due(), [], Due())
        else:
            leftover = leftover or Leftover.nothing(piece, between.size)
            yield from _coded_between(piece, coder, leftover, between, weight)
        yield self._come_home(piece)


class Leftover:
    """What rounding has left over of one piece: of what this rank sends, and of what it sums up."""

    def __init__(self, own: Tensor, sums: Tensor) -> None:
        """Views of where it is kept: ``sums`` as long as a shard, ``own`` as all of them."""
        self.own = own
        self.sums = sums

    @classmethod
    def nothing(cls, piece: Tensor, lanes: int) -> Leftover:
        """Where a first sum of such a piece begins."""
        each = shard_length(piece.numel(), lanes)
        own = piece.new_zeros((lanes + 1) * each, dtype=wide(piece.dtype))
        return cls(own[: lanes * each], own[lanes * each :])


def _coded_between(
    piece: Tensor, coder: Codec, leftover: Leftover, between: Channel, weight: float
) -> Stages:
    each = len(leftover.sums)
    shape = (between.size, coder.bytes_for(each))
    sent, received = (torch.empty(shape, dtype=torch.uint8, device=piece.device) for _ in range(2))
    for number, (values, row) in enumerate(zip(leftover.own.split(each), sent, strict=True)):
        summand = piece[number * each : (number + 1) * each]
        coder.encode_(values, row, plus=summand, weight=weight)
    first = between.all_to_all(received.view(-1), sent.view(-1), _KIND)
    yield []
    yield Due([first])
    for row in received:
        coder.decode(row, leftover.sums, add=True)
    coder.encode_(leftover.sums, sent[0])
    second = between.all_gather(received.view(-1), sent[0], _KIND)
    yield []
    yield Due([second])
    direct = piece.dtype == leftover.sums.dtype
    spare = torch.empty(0 if direct and len(piece) % each == 0 else each, dtype=leftover.sums.dtype)
    spare = spare.to(piece.device)
    for values, row in zip(piece.split(each), received, strict=False):
        if direct and len(values) == each:
            coder.decode(row, values)
        else:
            coder.decode(row, spare)
            values.copy_(spare[: len(values)])


def _nothing() -> Stages:
    for _ in range(_STAGES):
        yield []


def shard_length(numel: int, lanes: int) -> int:
    """Elements of a shard when ``numel`` are divided among so many ranks, in whole blocks."""
    return -(-numel // (lanes * QUANTISATION_GROUP)) * QUANTISATION_GROUP


def wide(dtype: torch.dtype) -> torch.dtype:
    """In what errors are kept: float32, or float64 where that is what is rounded."""
    return torch.float64 if dtype == torch.float64 else torch.float32
