"""Averages the shard of a fragment over the groups: exact, or quantised with error feedback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.quantisation import BFloat16Codec, Codec, Int4Codec, Int8Codec
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.blocks.error_feedback import ChunkFeedback, ErrorFeedback
from lightning_hier.comm.blocks.health import Participation
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.stages import Due, Stages, side_by_side

AcrossDtype = Literal["same", "bfloat16", "int8", "int4"]
"""Dtype of model updates between groups. ``"same"`` is the dtype of the parameters."""

_KIND = "models"
_ON_HOST = "models_on_host"

_STAGES = 6


def make_codec(across_dtype: AcrossDtype, dtype: torch.dtype) -> Codec | None:
    """Codec for parameters of ``dtype``; None if they are exchanged without quantisation."""
    if not dtype.is_floating_point:
        return None
    codecs = {"bfloat16": BFloat16Codec(), "int8": Int8Codec(), "int4": Int4Codec()}
    return codecs.get(across_dtype)


class Exchange:
    """Averages this rank's shard in its transfer buffer, in place.

    Methods that return stages are collectives of the ranks that average.

    Args:
        shard: shard of this rank.
        codec: codec of updates of parameters; None exchanges them without quantisation.
        route: process groups of the ranks that average.

    """

    def __init__(self, shard: Shard, codec: Codec | None, route: AcrossRoute) -> None:
        self._shard = shard
        self._codec = codec
        self._route = route
        self._feedback: ErrorFeedback | None = None
        if codec is not None and route.between is not None:
            self._feedback = ErrorFeedback(
                shard.parameters.stop - shard.parameters.start,
                chunk=shard.chunk,
                inter_host_ranks=route.inter_host_ranks,
                like=shard.values,
            )
        # Number of `Due` that the mean of a chunk's parameters yields.
        self.due = (1 if codec is None else 2) + route.hosts_are_shared

    @property
    def quantises(self) -> bool:
        """Whether local updates are quantised."""
        return self._codec is not None

    def chunk(
        self, chunk: Chunk, participation: Participation, *, keep: bool, carried: bool = True
    ) -> Stages:
        """Average all tensors of a chunk.

        Args:
            chunk: chunk of the shard.
            participation: groups that take part.
            keep: whether the error feedback is updated.
            carried: whether the state of local optimizers is averaged too.

        """
        if self._codec is None:
            # One collective for all values that are not quantised.
            end = self._shard.carried.stop if carried else self._shard.carried.start
            return self.exact(slice(min(chunk.start, end), min(chunk.stop, end)), participation)
        place = chunk.parameters
        mean = self.parameters(self._shard.values[place], place, participation, keep=keep)
        others = []
        if chunk.buffers.start < chunk.buffers.stop:
            others.append(self.exact(chunk.buffers, participation))
        if carried and chunk.carried.start < chunk.carried.stop:
            # Second moments span too many orders of magnitude for integers with a common scale.
            state = _weigh_(self._shard.values[chunk.carried], participation)
            others.append(quantised_sum(state, self._route, BFloat16Codec(), None))
        return side_by_side([mean, *others]) if others else mean

    def parameters(
        self, piece: Tensor, place: slice, participation: Participation, *, keep: bool
    ) -> Stages:
        """Average values of parameters, in place.

        Args:
            piece: values to average.
            place: range of the values in the shard.
            participation: groups that take part.
            keep: whether the error feedback is updated.

        """
        if self._codec is None:
            return exact_sum(_weigh_(piece, participation), self._route)
        if not participation.takes_part:
            piece.zero_()
        feedback = self._feedback.of(place, keep=keep) if self._feedback else None
        weight = 1.0 / participation.healthy
        return quantised_sum(piece, self._route, self._codec, feedback, weight=weight)

    def exact(self, place: slice, participation: Participation) -> Stages:
        """Average a range of the shard without quantisation."""
        return exact_sum(_weigh_(self._shard.values[place], participation), self._route)

    def state(self) -> dict[str, Any] | None:
        """Error feedback for a checkpoint; the tensors are not copied."""
        return None if self._feedback is None else self._feedback.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Load a state that was saved with the same chunks and ranks."""
        if self._feedback is not None and state is not None:
            self._feedback.load(state)


def exact_sum(piece: Tensor, route: AcrossRoute) -> Stages:
    """Sum ``piece`` over the groups, in place. A collective of the ranks that average.

    An exact and a quantised sum have the same stages on every rank: one inside each host, two
    between hosts, one inside each host. An inter-host collective is awaited one round later than
    necessary, so that the link always has another chunk to transfer.

    Args:
        piece: 1-D.
        route: process groups of the ranks that average.

    """
    if not piece.numel():
        yield from _no_stages()
        return
    yield [route.host.reduce_(piece, _ON_HOST)] if route.host else []
    sent = [route.between.all_reduce_(piece, _KIND)] if route.between else []
    # Empty stages correspond to those in which a quantised sum communicates.
    yield []
    yield Due(sent)
    yield []
    yield []
    yield _broadcast_on_host(piece, route)


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
        yield from _no_stages()
        return
    yield [route.host.reduce_(piece, _ON_HOST)] if route.host else []
    if route.between is not None:
        feedback = feedback or ChunkFeedback.zeros(piece, route.between.size)
        yield from _quantised_between(piece, codec, feedback, route.between, weight)
    else:
        if route.host is None:
            piece.mul_(weight)
        yield from ([], Due(), [], Due())
    yield _broadcast_on_host(piece, route)


def _broadcast_on_host(piece: Tensor, route: AcrossRoute) -> Sequence[Pending]:
    started = [route.host.broadcast_(piece, _ON_HOST)] if route.host else []
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
    first = between.all_to_all(received.view(-1), sent.view(-1), _KIND)
    yield []
    yield Due([first])
    for row in received:
        codec.decode(row, feedback.sums, add=True)
    codec.encode_(feedback.sums, sent[0])
    second = between.all_gather(received.view(-1), sent[0], _KIND)
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


def _no_stages() -> Stages:
    for _ in range(_STAGES):
        yield []


def _weigh_(piece: Tensor, participation: Participation) -> Tensor:
    """Scale ``piece`` to this group's term of the mean over participating groups, in place."""
    # Set to zero instead of multiplied by zero, because the product with NaN is NaN.
    return piece.div_(participation.healthy) if participation.takes_part else piece.zero_()
