"""Chunks of tensors, so that the intermediate results of a pass stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

# Elements that fit into the cache of a processor with intermediate results (measured).
CHUNK = 1 << 16

# On an accelerator, launching a kernel costs as much as a pass over a million elements.
_ON_ACCELERATOR = 256


def chunk_length(values: Tensor, in_cache: int) -> int:
    """Number of elements in a chunk that limits the memory of intermediate results.

    Args:
        values: tensor that a pass processes.
        in_cache: number of elements that fit into the cache of a processor. Chunks on an
            accelerator are larger.

    """
    return in_cache if values.device.type == "cpu" else _ON_ACCELERATOR * in_cache


def chunks(first: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Views of the same ranges of all tensors. None stays None."""
    numel, length = first.numel(), chunk_length(first, CHUNK)
    for start in range(0, numel, length):
        part = slice(start, min(start + length, numel))
        yield first[part], *(None if tensor is None else tensor[part] for tensor in others)


def chunks_with_starts(values: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Chunks of ``values``, and the position of the first element of each."""
    start = 0
    for (chunk,) in chunks(values):
        yield chunk, start
        start += chunk.numel()
