"""Groups of elements that share a scale: their lengths, their scales, and chunks of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunks_with_starts

# The scales add 0.8% to the bytes.
QUANTISATION_GROUP = 512
"""Elements that share a float32 scale in int8."""

# At equal bits, the least error of 32 to 512, for normal and heavier tails (docs/algorithms.md).
INT4_GROUP = 128
"""Elements that share a float32 scale in int4, a divisor of ``QUANTISATION_GROUP``."""

LARGEST_INT8, LARGEST_INT4 = 127.0, 7.0

# A product of the largest step and a rounded scale could be above the largest float32.
_LARGEST_PRODUCT = 0.999999 * torch.finfo(torch.float32).max

# Half a byte stores a step from -7 to 7 plus this.
INT4_ZERO = 8


def with_sum(values: Tensor, plus: Tensor | None, weight: float) -> Iterator[tuple[Tensor, int]]:
    """Chunks of ``values`` and their positions, after ``weight * plus`` has been added."""
    for chunk, start in chunks_with_starts(values):
        if plus is not None:
            summand = plus[start : start + chunk.numel()]
            chunk[: summand.numel()].add_(summand, alpha=weight)
        yield chunk, start


def groups(
    chunk: Tensor, start: int, scales: Tensor, encoded: Tensor, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantisation groups of a chunk as rows, their scales, and rows of their encoded elements."""
    rows = chunk.view(-1, group)
    place = slice(start // group, start // group + len(rows))
    return rows, scales[place], encoded.view(len(scales), -1)[place]


def quantise(rows: Tensor, scale: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Set the scale of each row. Returns the rows in whole steps, and the scales as a column."""
    rounded = torch.abs(rows)
    most = rounded.amax(dim=1)
    # Finite groups have finite products. inf and NaN must not be hidden.
    limited = most.div(largest).clamp_(max=_LARGEST_PRODUCT / largest)
    scale.copy_(torch.where(most.isfinite(), limited, most))
    # Scale 0 for groups of zeros, and for scales below the normal range of float32, whose
    # reciprocal may overflow. By a product, in which NaN stays NaN: it must not be hidden.
    scale.mul_(scale >= torch.finfo(torch.float32).tiny)
    wide = scale.to(rows.dtype).unsqueeze(1)
    torch.mul(rows, wide.reciprocal().nan_to_num_(posinf=0.0), out=rounded).round_()
    # Longer dtypes have values beyond the largest product. What is above it stays as error.
    rounded.clamp_(-largest, largest)
    return rounded, wide
