"""Sums of squares and checks for NaN, in one pass over each tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for


def sum_of_squares(values: Tensor) -> float:
    """Sum of the squared magnitudes of a 1-D tensor; NaN or inf if an element is not finite."""
    return kernels_for(values).sum_of_squares(values)


def all_finite(values: Tensor) -> bool:
    """Whether no element is NaN or inf. Reads the tensor once and allocates only two scalars."""
    flat = torch.view_as_real(values) if values.is_complex() else values
    if not flat.numel() or not flat.is_floating_point():
        return True
    # aminmax propagates NaN, and inf is always one of the two.
    low, high = torch.aminmax(flat)
    return bool(low.isfinite() & high.isfinite())
