"""Error feedback: what a quantised or sparse sum leaves out is added to the next sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hier.algorithms.quantisation import QUANTISATION_GROUP


@dataclass(frozen=True)
class ChunkFeedback:
    """Rounding errors of one chunk.

    Attributes:
        own: errors of the values that this rank sends, as long as all shards.
        sums: errors of the sums that this rank computes, as long as one shard, or empty.

    """

    own: Tensor
    sums: Tensor

    @classmethod
    def zeros(cls, piece: Tensor, inter_host_ranks: int) -> ChunkFeedback:
        """Errors of zero, for the first sum of a chunk."""
        each = _shard_length(piece.numel(), inter_host_ranks)
        both = piece.new_zeros((inter_host_ranks + 1) * each, dtype=error_dtype(piece.dtype))
        return cls(both[: inter_host_ranks * each], both[inter_host_ranks * each :])


class ErrorFeedback:
    """Rounding errors of a rank's shard of a fragment. Each sum adds those of the previous one.

    Args:
        numel: number of elements in the shard.
        chunk: number of elements in a chunk.
        inter_host_ranks: number of shards of which a chunk consists: the number of ranks that
            exchange between hosts, or 1 if none of them sums a shard for the others.
        sums: whether sums have errors, too.
        like: tensor on the device of the errors. They have its dtype, or float32 if that is wider.

    """

    def __init__(
        self, numel: int, *, chunk: int, inter_host_ranks: int, like: Tensor, sums: bool = True
    ) -> None:
        self._numel = numel
        self._has_sums = sums
        # Chunk by chunk, so that the errors of a chunk, with its padding, are one range.
        empty = torch.empty(0, dtype=error_dtype(like.dtype), device=like.device)
        self._own = self._sums = empty
        self._allocate(chunk, inter_host_ranks)

    def _allocate(self, chunk: int, inter_host_ranks: int) -> None:
        self._chunk, self._ranks = chunk, inter_host_ranks
        whole, rest = divmod(self._numel, self._chunk)
        # Every chunk is padded to equal shards.
        length = whole * _shard_length(self._chunk, self._ranks) + _shard_length(rest, self._ranks)
        self._own = self._own.new_zeros(self._ranks * length)
        self._sums = self._sums.new_zeros(length if self._has_sums else 0)

    def fit(self, inter_host_ranks: int) -> None:
        """Divide chunks among another number of ranks, in place.

        Errors of values stay. Those of sums are lost: their shards belong to other ranks now.
        """
        self._divide(self._chunk, inter_host_ranks)

    def _divide(self, chunk: int, inter_host_ranks: int) -> None:
        if (chunk, inter_host_ranks) == (self._chunk, self._ranks):
            return
        # Without the padding, which lies elsewhere in the other division.
        errors = self._own.new_empty(self._numel)
        for place in self._places():
            errors[place] = self._values_at(place)
        self._allocate(chunk, inter_host_ranks)
        for place in self._places():
            self._values_at(place).copy_(errors[place])

    def _places(self) -> Iterator[slice]:
        for start in range(0, self._numel, self._chunk):
            yield slice(start, min(start + self._chunk, self._numel))

    def _values_at(self, place: slice) -> Tensor:
        """Errors of the values of a chunk, without those of the padding, which are zero."""
        return self.of(place, keep=True).own[: place.stop - place.start]

    def forget(self) -> None:
        """Set all errors to zero, in place."""
        self._own.zero_()
        self._sums.zero_()

    def of(self, place: slice, *, keep: bool) -> ChunkFeedback:
        """Errors of the chunk at ``place`` of the shard.

        Args:
            place: range, which starts at a multiple of the chunk length.
            keep: whether a sum replaces the errors. False returns a copy.

        """
        number, each = place.start // self._chunk, _shard_length(self._chunk, self._ranks)
        length = _shard_length(place.stop - place.start, self._ranks)
        own = self._own[number * self._ranks * each :][: self._ranks * length]
        sums = self._sums[number * each :][:length]
        return ChunkFeedback(own, sums) if keep else ChunkFeedback(own.clone(), sums.clone())

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, without copying tensors."""
        return {"chunk": self._chunk, "ranks": self._ranks, "own": self._own, "sums": self._sums}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same shard.

        Chunks of another length, such as those of another kind of device, are divided as in
        :meth:`fit`. The number of ranks becomes that of the state.
        """
        chunk = self._chunk
        if (state["chunk"], state["ranks"]) != (chunk, self._ranks):
            self._allocate(state["chunk"], state["ranks"])
        self._own.copy_(state["own"])
        self._sums.copy_(state["sums"])
        self._divide(chunk, self._ranks)


def _shard_length(numel: int, ranks: int) -> int:
    """Number of elements in one of ``ranks`` shards, in whole quantisation groups."""
    # Each shard is encoded by itself, and codecs encode whole groups.
    return -(-numel // (ranks * QUANTISATION_GROUP)) * QUANTISATION_GROUP


def error_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the errors of parameters of ``dtype``."""
    # Codecs encode these two dtypes. With 16 bits, adding a small error could have no effect.
    return torch.float64 if dtype == torch.float64 else torch.float32
