"""Sums over the groups in stages: exact, and quantised with error feedback."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hier.algorithms.quantisation import Codec
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.blocks.error_feedback import ChunkFeedback
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.stages import Due, Stages

KIND, ON_HOST = "models", "models_on_host"
"""Kinds of the messages between hosts, and on a host."""

_STAGES = 6


def exact_sum(piece: Tensor, route: AcrossRoute) -> Stages:
    """Sum ``piece`` over the groups, in place. A collective of the ranks that average.

    All sums have the same stages on every rank: one inside each host, two between hosts, one inside
    each host. An inter-host collective is awaited one round later than
    necessary, so that the link always has another chunk to transfer.

    Args:
        piece: 1-D.
        route: process groups of the ranks that average.

    """
    if not piece.numel():
        yield from no_stages()
        return
    yield [route.host.reduce_(piece, ON_HOST)] if route.host else []
    sent = [route.between.all_reduce_(piece, KIND)] if route.between else []
    # Empty stages correspond to those in which a quantised sum communicates.
    yield []
    yield Due(sent)
    yield []
    yield []
    yield broadcast_on_host(piece, route)


def quantised_sum(
    piece: Tensor,
    route: AcrossRoute,
    codec: Codec,
    feedback: ChunkFeedback | None,
    *,
    weight: float = 1.0,
) -> Stages:
    """Sum ``piece`` over the groups, in place, quantised. Stages as in :func:`exact_sum`.

    It is a reduce-scatter (by an all-to-all) and an all-gather: every host sums an equal shard of
    the chunk and sends the sum to the others. Both steps round, with error feedback. The result is
    bit for bit the same in all groups.

    Args:
        piece: 1-D.
        route: process groups of the ranks that average.
        codec: encodes what is sent.
        feedback: errors of earlier sums of the chunk. They are added, and replaced by the errors of
            this sum. None: errors start at zero and are discarded.
        weight: factor of every summand.

    """
    if not piece.numel():
        yield from no_stages()
        return
    yield [route.host.reduce_(piece, ON_HOST)] if route.host else []
    if route.between is not None:
        feedback = feedback or ChunkFeedback.zeros(piece, route.between.size)
        yield from _quantised_between(piece, codec, feedback, route.between, weight)
    else:
        if route.host is None:
            piece.mul_(weight)
        yield from ([], Due(), [], Due())
    yield broadcast_on_host(piece, route)


def broadcast_on_host(piece: Tensor, route: AcrossRoute) -> Sequence[Pending]:
    """Last stage of a sum."""
    started = [route.host.broadcast_(piece, ON_HOST)] if route.host else []
    return Due(started) if route.hosts_are_shared else started


def _quantised_between(
    piece: Tensor, codec: Codec, feedback: ChunkFeedback, between: Channel, weight: float
) -> Stages:
    each = len(feedback.sums)
    shape = (between.size, codec.bytes_for(each))
    sent, received = (torch.empty(shape, dtype=torch.uint8, device=piece.device) for _ in range(2))
    for number, (values, row) in enumerate(zip(feedback.own.split(each), sent, strict=True)):
        summand = piece[number * each : (number + 1) * each]
        codec.encode_(values, row, plus=summand, weight=weight)
    first = between.all_to_all(received.view(-1), sent.view(-1), KIND)
    yield []
    yield Due([first])
    for row in received:
        codec.decode(row, feedback.sums, add=True)
    codec.encode_(feedback.sums, sent[0])
    second = between.all_gather(received.view(-1), sent[0], KIND)
    yield []
    yield Due([second])
    # Complete shards with the dtype of the errors are decoded in place. Others need a buffer.
    in_place = piece.dtype == feedback.sums.dtype
    length = 0 if in_place and len(piece) % each == 0 else each
    buffer = torch.empty(length, dtype=feedback.sums.dtype, device=piece.device)
    for values, row in zip(piece.split(each), received, strict=False):
        if in_place and len(values) == each:
            codec.decode(row, values)
        else:
            codec.decode(row, buffer)
            values.copy_(buffer[: len(values)])


def no_stages() -> Stages:
    """Stages of a sum of no elements."""
    for _ in range(_STAGES):
        yield []
