"""A metric for ratios of sums over all batches of all ranks, such as bits per byte."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class SumRatio(Metric):
    """Sum of numerators divided by sum of denominators, in float64.

    Batches are weighted by their denominators. The value does not depend on the division of windows
    among batches and ranks, except for rounding.
    """

    is_differentiable = False
    full_state_update = False
    numerator: Tensor
    denominator: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("numerator", "denominator"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, numerator: Tensor, denominator: Tensor) -> None:
        """Add the sums of a batch."""
        self.numerator += numerator.to(self.numerator)
        self.denominator += denominator.to(self.denominator)

    def compute(self) -> Tensor:
        """Return the ratio, or NaN if both sums are empty."""
        return self.numerator / self.denominator
