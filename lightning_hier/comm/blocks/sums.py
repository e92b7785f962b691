"""Sums over the groups in stages: exact, quantised and sparse, the last two with error feedback.

All sums have the same stages on every rank: one inside each host, four between hosts and one inside
each host. A collective between hosts is awaited one stage later than necessary, so that the link
always has another chunk to transfer.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from lightning_hier.algorithms.quantisation import Codec
from lightning_hier.comm.blocks.error_feedback import ChunkFeedback
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.communicators import AcrossRoute
from lightning_hier.comm.stages import Due, DueOnHost, Scheduled, Stages

_KIND = "models"
_ON_HOST = "models_on_host"
_STAGES = 6


def exact_sum(piece: Tensor, route: AcrossRoute) -> Scheduled:
    """Sum ``piece`` over the groups, in place. A collective of the ranks that average.

    Args:
        piece: 1-D.
        route: process groups of the ranks that average.

    """
    return _through_hosts(piece, route, _exact_between(piece, route.between), exchanges=1)


def quantised_sum(
    piece: Tensor,
    route: AcrossRoute,
    codec: Codec,
    feedback: ChunkFeedback | None,
    *,
    weight: float = 1.0,
) -> Scheduled:
    """Sum ``piece`` over the groups, in place, quantised. Stages as in :func:`exact_sum`.

    It is a reduce-scatter and an all-gather, each by an all-to-all: every host sums an equal shard
    of the chunk and sends the sum to the others. Both steps round, with error feedback. The result
    is bit for bit the same in all groups.

    Args:
        piece: 1-D.
        route: process groups of the ranks that average.
        codec: encodes what is sent.
        feedback: errors of earlier sums of the chunk. They are added, and replaced by the errors of
            this sum. None: errors start at zero and are discarded.
        weight: factor of every summand.

    """
    if route.between is None:
        between = _without_exchange(piece, route, weight, exchanges=2)
    else:
        between = _quantised_between(piece, codec, feedback, route.between, weight)
    return _through_hosts(piece, route, between, exchanges=2)


def sparse_sum(
    piece: Tensor,
    route: AcrossRoute,
    codec: Codec,
    feedback: ChunkFeedback | None,
    *,
    weight: float = 1.0,
) -> Scheduled:
    """Sum the largest elements of ``piece`` over the groups, in place.

    With the error feedback e_k of inter-host rank k, in the order of the ranks (sparseloco
    algorithm 1, with beta = 1)::

        q_k   = Q(top(weight * piece_k + e_k))       Q and top of the codec
        e_k  <- weight * piece_k + e_k - q_k
        piece = sum over k of q_k

    The payload of a rank has the same length on all ranks, so one all-gather exchanges everything.
    The result is bit for bit the same in all groups. Stages as in :func:`exact_sum`.

    Args:
        piece, route, weight: as of :func:`quantised_sum`.
        codec: a :class:`~lightning_hier.algorithms.sparse_codec.SparseCodec`.
        feedback: e_k as ``own``, in place. None on ranks that do not exchange between hosts.

    """
    if route.between is None:
        between = _without_exchange(piece, route, weight, exchanges=1)
    else:
        assert feedback is not None, "inter-host ranks have error feedback"
        errors = feedback.own[: piece.numel()]
        between = _sparse_between(piece, codec, errors, route.between, weight)
    return _through_hosts(piece, route, between, exchanges=1)


def _through_hosts(
    piece: Tensor, route: AcrossRoute, between: Stages, *, exchanges: int
) -> Scheduled:
    """The sum on one rank of each host, then ``between`` hosts, then its copy to the other ranks.

    Args:
        piece: 1-D, in place.
        route: process groups of the ranks that average.
        between: the four stages between hosts. They start when the sum of the host is complete.
        exchanges: number of :class:`Due` that they yield between hosts.

    """
    # The shard of this rank may be shorter than those of other positions in its group.
    if not piece.numel():
        return Scheduled(iter([[]] * _STAGES), due=0)
    stages = chain(_sum_on_host(piece, route), between, _copy_on_host(piece, route))
    due = exchanges * Due.units + route.hosts_are_shared * DueOnHost.units
    return Scheduled(stages, due=due)


def _sum_on_host(piece: Tensor, route: AcrossRoute) -> Stages:
    yield [route.host.reduce_(piece, _ON_HOST)] if route.host else []


def _copy_on_host(piece: Tensor, route: AcrossRoute) -> Stages:
    started = [route.host.broadcast_(piece, _ON_HOST)] if route.host else []
    # The same on all ranks, also on hosts with a single rank.
    yield DueOnHost(started) if route.hosts_are_shared else started


def _exact_between(piece: Tensor, between: Channel | None) -> Stages:
    sent = [between.all_reduce_(piece, _KIND)] if between else []
    # One stage later than necessary, as the docstring of this module says.
    yield []
    yield Due(sent)
    # Empty stages correspond to those in which a quantised sum communicates.
    yield []
    yield []


def _without_exchange(
    piece: Tensor, route: AcrossRoute, weight: float, *, exchanges: int
) -> Stages:
    """The four stages between hosts of a rank that does not exchange with other hosts.

    Args:
        piece: as in :func:`exact_sum`.
        route: as in :func:`exact_sum`.
        weight: factor of the summand of a rank without others on its host.
        exchanges: number of collectives of the ranks that exchange, one or two.

    """
    if route.host is None:  # otherwise the rank that exchanges weighs the sum of the host
        piece.mul_(weight)
    for number in range(2):
        yield []
        yield Due() if number < exchanges else []


def _quantised_between(
    piece: Tensor, codec: Codec, feedback: ChunkFeedback | None, between: Channel, weight: float
) -> Stages:
    feedback = feedback or ChunkFeedback.zeros(piece, between.size)
    each = len(feedback.sums)
    shape = (between.size, codec.bytes_for(each))
    sent, received = (torch.empty(shape, dtype=torch.uint8, device=piece.device) for _ in range(2))
    # Row k is the shard of the chunk that inter-host rank k sums.
    for number, (values, row) in enumerate(zip(feedback.own.split(each), sent, strict=True)):
        summand = piece[number * each : (number + 1) * each]
        codec.encode_(values, row, plus=summand, weight=weight)
    first = between.all_to_all(received.view(-1), sent.view(-1), _KIND)
    yield []
    yield Due([first])
    # Added to the errors of the last sum. The encoding leaves the errors of this one.
    for row in received:
        codec.decode(row, feedback.sums, add=True)
    # All ranks decode these bytes, so that groups have the same bits. This rank decodes them, too.
    codec.encode_(feedback.sums, sent[0])
    # To all at once: the bytes of an all-gather, whose ring would take a latency for each host.
    sent[1:] = sent[0]
    second = between.all_to_all(received.view(-1), sent.view(-1), _KIND)
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


def _sparse_between(
    piece: Tensor, codec: Codec, errors: Tensor, between: Channel, weight: float
) -> Stages:
    sent = torch.empty(codec.bytes_for(len(piece)), dtype=torch.uint8, device=piece.device)
    received = sent.new_empty((between.size, len(sent)))
    codec.encode_(errors, sent, plus=piece, weight=weight)
    gathered = between.all_gather(received.view(-1), sent, _KIND)
    # Empty stages correspond to those in which a quantised sum communicates.
    yield []
    yield Due([gathered])
    # In the order of the rows on every rank, so that groups have the same bits. Sums of 16-bit
    # models are computed in the dtype of the errors.
    total = piece if piece.dtype == errors.dtype else torch.empty_like(errors)
    total.zero_()
    for row in received:
        codec.decode(row, total, add=True)
    if total is not piece:
        piece.copy_(total)
    yield []
    yield []
