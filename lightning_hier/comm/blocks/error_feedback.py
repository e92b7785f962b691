"""What short forms leave over of a flat model: the error feedback of quantised synchronisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_hier.comm.blocks.averaging import ChunkError, shard_length, wide


class ErrorFeedback:
    """Rounding errors that the next synchronisation sends along.

    Args:
        numel: elements of this rank's share of the model.
        chunk: elements that are exchanged at a time.
        inter_host_ranks: ranks that exchange.
        like: whose device counts; at least float32 is kept.

    """

    def __init__(self, numel: int, *, chunk: int, inter_host_ranks: int, like: Tensor) -> None:
        self._chunk = chunk
        self._lanes = inter_host_ranks
        # Every chunk ends in padding, so that its shards are equal.
        sums = numel // chunk * shard_length(chunk, inter_host_ranks) + shard_length(
            numel % chunk, inter_host_ranks
        )
        dtype = wide(like.dtype)
        self._own = torch.zeros(inter_host_ranks * sums, dtype=dtype, device=like.device)
        self._sums = torch.zeros(sums, dtype=dtype, device=like.device)

    def of(self, place: slice, *, keep: bool) -> ChunkError:
        """That of one chunk, which begins at a multiple of the chunk's length.

        Args:
            place: in the share.
            keep: whether a sum shall replace it; otherwise a copy.

        """
        number, shard = place.start // self._chunk, shard_length(self._chunk, self._lanes)
        own = self._own[number * self._lanes * shard :]
        sums = self._sums[number * shard :]
        length = shard_length(place.stop - place.start, self._lanes)
        own, sums = own[: self._lanes * length], sums[:length]
        return ChunkError(own, sums) if keep else ChunkError(own.clone(), sums.clone())

    def state(self) -> dict[str, Any]:
        """For a checkpoint; the tensors are not copied."""
        return {"own": self._own, "sums": self._sums}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`state` gave, from a run with the same chunks and ranks."""
        self._own.copy_(state["own"])
        self._sums.copy_(state["sums"])
