"""How many elements of a tensor a pass works on at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

# Elements that stay in a processor's cache together with intermediate results; by measurement.
CHUNK = 1 << 16

# On an accelerator, launching a kernel costs as much as a pass over a million elements.
_ON_ACCELERATOR = 128


def chunk_length(values: Tensor, in_cache: int) -> int:
    """Number of elements that bounds the memory of intermediate results and costs no time.

    Args:
        values: tensor that a pass works on.
        in_cache: number of elements that stay in a processor's cache. An accelerator takes many
            times as many.

    """
    return in_cache if values.device.type == "cpu" else _ON_ACCELERATOR * in_cache


def chunks(first: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Views of equal parts of ``first`` and of as many elements of the others; None stays None."""
    numel, length = first.numel(), chunk_length(first, CHUNK)
    for start in range(0, numel, length):
        part = slice(start, min(start + length, numel))
        yield first[part], *(None if own is None else own[part] for own in others)
