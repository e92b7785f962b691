"""Sums over the groups of a flat chunk of their models: exact, or quantised with error feedback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels.reference import QUANTISATION_GROUP
from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec, Int8Codec
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.stages import Due, Stages

AcrossDtype = Literal["same", "bfloat16", "int8"]
"""Data type of model updates between groups; ``"same"`` is that of the parameters."""

_KIND = "models"
_ON_HOST = "models_on_host"

_STAGES = 6


def make_codec(across_dtype: AcrossDtype, dtype: torch.dtype) -> Codec | None:
    """Codec for parameters of ``dtype``; None where they are exchanged without quantisation."""
    if not dtype.is_floating_point:
        return None
    return {"same": None, "bfloat16": BFloat16Codec(), "int8": Int8Codec()}[across_dtype]


class Averaging:
    """Sums chunks over the groups along a route.

    A sum has the same stages on every rank: one inside each host, two between hosts, one inside
    each host. An inter-host collective is awaited one round later than possible, so that the link
    always has the next chunk to transfer.

    Args:
        route: process groups of the ranks that average.

    """

    def __init__(self, route: AcrossRoute) -> None:
        self._route = route

    def due(self, codec: Codec | None) -> int:
        """Number of :class:`~lightning_hier.comm.stages.Due` that the sum of a chunk yields."""
        return (1 if codec is None else 2) + self._route.hosts_are_shared

    def exact(self, piece: Tensor) -> Stages:
        """Sum ``piece`` over the groups, in place. A collective of the ranks that average."""
        if not piece.numel():
            yield from _no_stages()
            return
        route = self._route
        yield [route.host.reduce_(piece, _ON_HOST)] if route.host else []
        sent = [route.between.all_reduce_(piece, _KIND)] if route.between else []
        # The empty stages are those in which a quantised sum communicates.
        yield []
        yield Due(sent)
        yield []
        yield []
        yield self._broadcast_on_host(piece)

    def quantised(
        self, piece: Tensor, codec: Codec, feedback: ChunkFeedback | None, *, weight: float = 1.0
    ) -> Stages:
        """Sum ``piece`` over the groups, in place, quantised. A collective of averaging ranks.

        A reduce-scatter by an all-to-all and an all-gather: every host sums an equal shard of the
        chunk and sends the sum to the others. Both steps round and keep their error. The result
        has the same bits in all groups.

        Args:
            piece: 1-D.
            codec: encodes what is sent.
            feedback: errors of earlier sums of the chunk. They are added, and replaced by the
                errors of this sum. None starts at zero and keeps nothing.
            weight: factor of every summand.

        """
        if not piece.numel():
            yield from _no_stages()
            return
        host, between = self._route.host, self._route.between
        yield [host.reduce_(piece, _ON_HOST)] if host else []
        if between is None and host is None:
            piece.mul_(weight)
        if between is None:
            yield from ([], Due(), [], Due())
        else:
            feedback = feedback or ChunkFeedback.zeros(piece, between.size)
            yield from _quantised_between(piece, codec, feedback, between, weight)
        yield self._broadcast_on_host(piece)

    def _broadcast_on_host(self, piece: Tensor) -> Sequence[Pending]:
        host = self._route.host
        started = [host.broadcast_(piece, _ON_HOST)] if host else []
        return Due(started) if self._route.hosts_are_shared else started


@dataclass(frozen=True)
class ChunkFeedback:
    """Rounding errors of one chunk.

    Attributes:
        own: of the values that this rank sends, as long as all shards.
        sums: of the sums that this rank computes, as long as one shard.

    """

    own: Tensor
    sums: Tensor

    @classmethod
    def zeros(cls, piece: Tensor, inter_host_ranks: int) -> ChunkFeedback:
        """Errors before the first sum of such a chunk."""
        each = _shard_length(piece.numel(), inter_host_ranks)
        both = piece.new_zeros((inter_host_ranks + 1) * each, dtype=_error_dtype(piece.dtype))
        return cls(both[: inter_host_ranks * each], both[inter_host_ranks * each :])


class ErrorFeedback:
    """Rounding errors of a rank's shard of the model; each sum adds those of the one before.

    Args:
        numel: elements of the shard.
        chunk: elements of one chunk.
        inter_host_ranks: number of ranks that exchange between hosts.
        like: tensor on the device of the errors; its dtype is used, or float32 if that is wider.

    """

    def __init__(self, numel: int, *, chunk: int, inter_host_ranks: int, like: Tensor) -> None:
        self._chunk = chunk
        self._ranks = inter_host_ranks
        whole, rest = divmod(numel, chunk)
        # Every chunk is padded to equal shards.
        length = whole * _shard_length(chunk, self._ranks) + _shard_length(rest, self._ranks)
        dtype = _error_dtype(like.dtype)
        self._own = torch.zeros(self._ranks * length, dtype=dtype, device=like.device)
        self._sums = torch.zeros(length, dtype=dtype, device=like.device)

    def of(self, place: slice, *, keep: bool) -> ChunkFeedback:
        """Errors of the chunk at ``place`` of the shard.

        Args:
            place: starts at a multiple of the chunk's length.
            keep: whether a sum replaces the errors. False returns a copy.

        """
        number, each = place.start // self._chunk, _shard_length(self._chunk, self._ranks)
        length = _shard_length(place.stop - place.start, self._ranks)
        own = self._own[number * self._ranks * each :][: self._ranks * length]
        sums = self._sums[number * each :][:length]
        return ChunkFeedback(own, sums) if keep else ChunkFeedback(own.clone(), sums.clone())

    def state(self) -> dict[str, Any]:
        """State for a checkpoint; the tensors are not copied."""
        return {"own": self._own, "sums": self._sums}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a state that was saved with the same chunks and ranks."""
        self._own.copy_(state["own"])
        self._sums.copy_(state["sums"])


def _quantised_between(
    piece: Tensor, codec: Codec, feedback: ChunkFeedback, between: Channel, weight: float
) -> Stages:
    each = len(feedback.sums)
    shape = (between.size, codec.bytes_for(each))
    sent, received = (torch.empty(shape, dtype=torch.uint8, device=piece.device) for _ in range(2))
    for number, (values, row) in enumerate(zip(feedback.own.split(each), sent, strict=True)):
        summand = piece[number * each : (number + 1) * each]
        codec.encode_(values, row, plus=summand, weight=weight)
    first = between.all_to_all(received.view(-1), sent.view(-1), _KIND)
    yield []
    yield Due([first])
    for row in received:
        codec.decode(row, feedback.sums, add=True)
    codec.encode_(feedback.sums, sent[0])
    second = between.all_gather(received.view(-1), sent[0], _KIND)
    yield []
    yield Due([second])
    # Full shards of the errors' dtype are decoded in place; others need a buffer.
    in_place = piece.dtype == feedback.sums.dtype
    length = 0 if in_place and len(piece) % each == 0 else each
    buffer = torch.empty(length, dtype=feedback.sums.dtype, device=piece.device)
    for values, row in zip(piece.split(each), received, strict=False):
        if in_place and len(values) == each:
            codec.decode(row, values)
        else:
            codec.decode(row, buffer)
            values.copy_(buffer[: len(values)])


def _no_stages() -> Stages:
    for _ in range(_STAGES):
        yield []


def _shard_length(numel: int, ranks: int) -> int:
    """Elements of a shard of ``numel`` elements among ``ranks``, in whole quantisation groups."""
    return -(-numel // (ranks * QUANTISATION_GROUP)) * QUANTISATION_GROUP


def _error_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
