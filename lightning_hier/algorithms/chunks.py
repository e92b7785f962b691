"""Lengths of the chunks of a tensor that passes process and that groups exchange.

The planner uses the second one. It does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Elements that fit into the cache of a processor with intermediate results (measured).
CHUNK = 1 << 16

# On an accelerator, launching a kernel costs as much as a pass over a million elements.
_ON_ACCELERATOR = 256

# Elements of a chunk that is exchanged: short enough that transfer and computation of chunks
# overlap, and long enough for the overhead of a message. Quantised chunks are twice as long,
# because their messages are shorter.
EXCHANGED = 1 << 19

# Ranks of one host have no link to keep busy. Every message wakes another rank: with chunks of half
# a million elements, this took a third of a synchronisation (docs/reports/performance.md).
EXCHANGED_ON_HOST = 1 << 21

# On an accelerator, chunks are longer, so that a kernel runs longer than its launch takes (measured
# in docs/reports/cuda.md).
_EXCHANGED_ON_ACCELERATOR = 1 << 25


def chunk_length(values: Tensor, in_cache: int) -> int:
    """Number of elements in a chunk that limits the memory of intermediate results.

    Args:
        values: tensor that a pass processes.
        in_cache: number of elements that fit into the cache of a processor. Chunks on an
            accelerator are larger.

    """
    return in_cache if values.device.type == "cpu" else _ON_ACCELERATOR * in_cache


def chunks(
    first: Tensor, *others: Tensor | None, in_cache: int | None = None
) -> Iterator[tuple[Any, ...]]:
    """Views of the same ranges of all tensors, so that intermediate results stay in the cache.

    None stays None. ``in_cache`` is that of :func:`chunk_length`, or None for ``CHUNK``.
    """
    numel, length = first.numel(), chunk_length(first, in_cache or CHUNK)
    for start in range(0, numel, length):
        part = slice(start, min(start + length, numel))
        yield first[part], *(None if tensor is None else tensor[part] for tensor in others)


def exchanged_length(*, on_cpu: bool, quantised: bool, one_host: bool) -> int:
    """Number of elements in a chunk that groups exchange.

    Args:
        on_cpu: whether the model is in the memory of the host.
        quantised: whether updates are quantised.
        one_host: whether all ranks are on one host.

    """
    if not on_cpu:
        return _EXCHANGED_ON_ACCELERATOR
    # The same on one host and on several, so that a resumed run keeps all errors of quantisation.
    if quantised:
        return 2 * EXCHANGED
    return EXCHANGED_ON_HOST if one_host else EXCHANGED
