"""What is asked of every element of a model at every synchronisation, in one quick pass."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.block_passes import block_passes_for

# Elements widened at a time: the copy stays in the cache.
_CHUNK = 1 << 16


def sum_of_squares(values: Tensor) -> float:
    """Sum of the squared magnitudes of a 1-D tensor, in double precision.

    NaN or inf where a value is. ``vector_norm(dtype=float64)`` would widen all of it first, which
    takes several times as long as reading it.
    """
    flat = torch.view_as_real(values).flatten() if values.is_complex() else values
    if flat.device.type != "cpu":
        norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
        return norm * norm  # a power that overflows would raise
    passes = block_passes_for(flat)
    if passes is not None:
        return passes.sum_of_squares(flat)
    wide = torch.empty(min(_CHUNK, flat.numel()), dtype=torch.float64)
    total = 0.0
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        part = wide[: chunk.numel()].copy_(chunk)
        total += float(torch.dot(part, part))
    return total


def all_finite(values: Tensor) -> bool:
    """Whether no element is NaN or inf. Reads them once and writes nothing of their size."""
    flat = torch.view_as_real(values) if values.is_complex() else values
    if not flat.numel() or not flat.is_floating_point():
        return True
    low, high = torch.aminmax(flat)  # NaN goes through
    return bool(low.isfinite() & high.isfinite())
