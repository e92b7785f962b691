"""Sparse sums over the groups, with error feedback: every rank gathers what all have sent."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.quantisation import Codec
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.blocks.error_feedback import ChunkFeedback
from lightning_hier.comm.blocks.sums import (
    KIND,
    broadcast_on_host,
    not_between,
    nothing_to_sum,
    sum_on_host,
)
from lightning_hier.comm.channel import Channel
from lightning_hier.comm.stages import Due, Stages


def sparse_sum(
    piece: Tensor,
    route: AcrossRoute,
    codec: Codec,
    feedback: ChunkFeedback | None,
    *,
    weight: float = 1.0,
) -> Stages:
    """Sum the largest elements of ``piece`` over the groups, in place.

    With the error feedback e_k of inter-host rank k, in the order of the ranks (sparseloco
    algorithm 1, with beta = 1)::

        q_k   = Q(top(weight * piece_k + e_k))       Q and top of the codec
        e_k  <- weight * piece_k + e_k - q_k
        piece = sum over k of q_k

    The payload of a rank has the same length on all ranks, so one all-gather exchanges everything.
    The result is bit for bit the same in all groups. Stages are those of
    :func:`~lightning_hier.comm.blocks.sums.exact_sum`.

    Args:
        piece: 1-D.
        route: process groups of the ranks that average.
        codec: a :class:`~lightning_hier.algorithms.sparse_codec.SparseCodec`.
        feedback: e_k as ``own``, in place. None on ranks that do not exchange between hosts.
        weight: factor of every summand.

    """
    if not piece.numel():
        yield from nothing_to_sum()
        return
    yield sum_on_host(piece, route)
    if route.between is None:
        yield from not_between(piece, route, weight, exchanges=1)
    else:
        assert feedback is not None, "inter-host ranks have error feedback"
        yield from _gathered(piece, codec, feedback.own[: piece.numel()], route.between, weight)
    yield broadcast_on_host(piece, route)


def _gathered(
    piece: Tensor, codec: Codec, errors: Tensor, between: Channel, weight: float
) -> Stages:
    own = torch.empty(codec.bytes_for(len(piece)), dtype=torch.uint8, device=piece.device)
    received = own.new_empty((between.size, len(own)))
    codec.encode_(errors, own, plus=piece, weight=weight)
    gathered = between.all_gather(received.view(-1), own, KIND)
    # Empty stages correspond to those in which a quantised sum communicates.
    yield []
    yield Due([gathered])
    # Sums of 16-bit models are computed in the dtype of the errors.
    total = piece if piece.dtype == errors.dtype else torch.empty_like(errors)
    total.zero_()
    for row in received:
        codec.decode(row, total, add=True)
    if total is not piece:
        piece.copy_(total)
    yield []
    yield []
