"""A per-frame average that is exact over batches of unequal size and over ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class FrameAverage(Metric):
    """Sum of a quantity over frames divided by the number of frames, over all batches and ranks.

    Averaging the averages of batches would weigh a frame by how full its batch was, and a mean of
    the ranks' means by how many frames the rank saw. The sum is kept in float64, so that counts of
    errors stay exact beyond 2^24.
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
            total: scalar, the quantity summed over the frames of the batch.
            frames: scalar integer, how many frames that were.
        """
        self.total += total.detach().to(torch.float64)
        self.frames += frames

    def compute(self) -> Tensor:
        """Return the average, a float64 scalar; not a number when there was no frame."""
        return self.total / self.frames
