"""Average over frames that is exact for batches of different sizes and for several ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class FrameAverage(Metric):
    """Sum of a quantity over frames divided by the number of frames, over all batches and ranks.

    A mean of the means of batches, or of ranks, would give the frames of small batches, or of ranks
    with few frames, a larger weight. The sum is in float64, because counts of errors in float32 are
    exact only up to 2^24.
    """

    full_state_update = False
    higher_is_better = False
    total: Tensor
    frames: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("frames", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, total: Tensor, frames: Tensor) -> None:
        """Add a batch.

        Args:
            total: scalar, sum of the quantity over the frames of the batch.
            frames: scalar integer, number of these frames.
        """
        self.total += total.detach().to(torch.float64)
        self.frames += frames

    def compute(self) -> Tensor:
        """Return the average, a float64 scalar. It is NaN if there was no frame."""
        return self.total / self.frames
