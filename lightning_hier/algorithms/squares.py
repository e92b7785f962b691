"""Sums of squares of tensors, and whether all their values are finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_hier.algorithms.chunks import chunks

SumOfSquares = float | Tensor
"""On an accelerator it is a tensor with one element, so that the host need not wait until the
device has computed it."""


def sum_of_squares(values: Tensor) -> SumOfSquares:
    """Sum of the squared magnitudes of a 1-D tensor; NaN or inf if an element is not finite."""
    flat = torch.view_as_real(values).flatten() if values.is_complex() else values
    if flat.device.type != "cpu":
        # One kernel, and no wait for the device.
        norm: Tensor = torch.linalg.vector_norm(flat, dtype=torch.float64)
        return norm.square()
    total = 0.0
    for (chunk,) in chunks(flat):
        single = chunk.float() if chunk.itemsize < 4 else chunk
        squares = float(torch.dot(single, single))
        if not math.isfinite(squares):  # the squares of finite values may be beyond float32
            wide = chunk.double()
            squares = float(torch.dot(wide, wide))
        total += squares
    return total


def all_finite(values: Tensor) -> bool:
    """Whether no element is NaN or inf. Reads the tensor once and allocates only two scalars."""
    flat = torch.view_as_real(values) if values.is_complex() else values
    if not flat.numel() or not flat.is_floating_point():
        return True
    # aminmax propagates NaN, and inf is always one of the two.
    low, high = torch.aminmax(flat)
    return math.isfinite(low) and math.isfinite(high)
