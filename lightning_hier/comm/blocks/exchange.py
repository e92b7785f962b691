"""Averages the shard of a fragment over the groups: exact, quantised or sparse."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.quantisation import (
    BFloat16Codec,
    Codec,
    ExactCodec,
    QuantisedCodec,
)
from lightning_hier.algorithms.sparse_codec import SparseCodec
from lightning_hier.comm.blocks.error_feedback import ErrorFeedback, error_dtype
from lightning_hier.comm.blocks.health import Averaging
from lightning_hier.comm.blocks.shard import Chunk, Shard
from lightning_hier.comm.blocks.sums import exact_sum, quantised_sum, sparse_sum
from lightning_hier.comm.communicators import AcrossRoute
from lightning_hier.comm.stages import Scheduled, side_by_side

AcrossDtype = Literal["same", "bfloat16", "int8", "int4"]
"""Dtype of model updates between groups. ``"same"`` is the dtype of the parameters."""


def make_codec(across_dtype: AcrossDtype, dtype: torch.dtype, density: float = 1.0) -> Codec | None:
    """Codec of local updates; None if models are exchanged as they are.

    Args:
        across_dtype: dtype of the values.
        dtype: dtype of the parameters. Complex ones have no codec.
        density: share of the elements that is sent.

    """
    if not dtype.is_floating_point:
        return None
    codecs = {"bfloat16": BFloat16Codec(), "int8": QuantisedCodec(8), "int4": QuantisedCodec(4)}
    codec: Codec | None = codecs.get(across_dtype)
    if density < 1.0:
        return SparseCodec(codec or ExactCodec(error_dtype(dtype)), density)
    return codec


class Exchange:
    """Averages this rank's shard in its transfer buffer, in place.

    Methods that return stages are collectives of the ranks that average.

    Args:
        shard: shard of this rank.
        codec: codec of updates of parameters; None exchanges them as they are.
        route: process groups of the ranks that average.

    Attributes:
        feedback: errors of what this rank has sent, or None if it sends the values as they are.

    """

    def __init__(self, shard: Shard, codec: Codec | None, route: AcrossRoute) -> None:
        self._shard = shard
        self._codec = codec
        self._route = route
        self._is_sparse = isinstance(codec, SparseCodec)
        # The other ranks of a host add their updates exactly to that of the rank that exchanges.
        self.feedback: ErrorFeedback | None = None
        if codec is not None and route.between is not None:
            self.feedback = ErrorFeedback(
                shard.parameters.stop - shard.parameters.start,
                chunk=shard.chunk,
                # Every rank sums everything that is sparse, and its sum is not rounded.
                inter_host_ranks=1 if self._is_sparse else route.inter_host_ranks,
                sums=not self._is_sparse,
                like=shard.values,
            )

    def chunk(
        self, chunk: Chunk, averaging: Averaging, *, keep: bool, carried: bool = True
    ) -> Scheduled:
        """Average all tensors of a chunk.

        Args:
            chunk: chunk of the shard.
            averaging: how the groups are averaged.
            keep: whether the error feedback is updated.
            carried: whether the state of local optimizers is averaged too.

        """
        if self._codec is None:
            # One collective for all values that are not quantised, which follow each other in the
            # shard. The state comes last, so it can be left out.
            end = self._shard.carried.stop if carried else self._shard.carried.start
            return self.exact(slice(min(chunk.start, end), min(chunk.stop, end)), averaging)
        # Several sums with equally many stages. Which ones there are follows from the shard, and
        # ranks that average have shards of equal length.
        place = chunk.parameters
        mean = self.parameters(self._shard.values[place], place, averaging, keep=keep)
        others = []
        if chunk.buffers.start < chunk.buffers.stop:
            others.append(self.exact(chunk.buffers, averaging))
        if carried and chunk.carried.start < chunk.carried.stop:
            others.append(self.carried(self._shard.values[chunk.carried], averaging))
        return Scheduled(side_by_side([mean, *others]), due=0) if others else mean

    def parameters(
        self, piece: Tensor, place: slice, averaging: Averaging, *, keep: bool
    ) -> Scheduled:
        """Average values of parameters, in place.

        Args:
            piece: values to average.
            place: range of the values in the shard.
            averaging: how the groups are averaged.
            keep: whether the error feedback is updated.

        """
        if self._codec is None:
            return exact_sum(weigh_(piece, averaging), self._route)
        weight = 1.0 / averaging.models
        if averaging.weight is not None:
            # Ranks on one host sum their pieces before the sum is weighed.
            weigh_(piece, averaging)
            weight = 1.0
        feedback = self.feedback.of(place, keep=keep) if self.feedback else None
        total = sparse_sum if self._is_sparse else quantised_sum
        return total(piece, self._route, self._codec, feedback, weight=weight)

    def carried(self, piece: Tensor, averaging: Averaging) -> Scheduled:
        """Average optimizer state, in place: as bfloat16 if updates are quantised or sparse."""
        weigh_(piece, averaging)
        if self._codec is None:
            return exact_sum(piece, self._route)
        # Second moments span too many orders of magnitude for integers with a common scale.
        return quantised_sum(piece, self._route, BFloat16Codec(), None)

    def exact(self, place: slice, averaging: Averaging) -> Scheduled:
        """Average a range of the shard without quantisation."""
        return exact_sum(weigh_(self._shard.values[place], averaging), self._route)

    def fit(self, inter_host_ranks: int) -> None:
        """Divide the error feedback of chunks among another number of ranks, in place."""
        if self.feedback is not None and not self._is_sparse:
            self.feedback.fit(inter_host_ranks)


def weigh_(piece: Tensor, averaging: Averaging) -> Tensor:
    """Scale ``piece`` to this group's term of the mean over the groups, in place.

    It is scaled before the sum, so that sums of half precision stay in range.
    """
    if averaging.weight is not None:
        return piece.mul_(averaging.weight)
    return piece.div_(averaging.models)
