"""Mean and variance normalisation of features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# A dimension that hardly moves (a filter above the band of the recording) is not blown up.
_SMALLEST_DEVIATION = 1e-3


@dataclass(frozen=True)
class Normalisation:
    """Shift and scale per dimension, estimated over frames.

    Attributes:
        mean: (D,) float32.
        deviation: (D,) float32.
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, features: Iterable[Tensor]) -> Normalisation:
        """Estimate over all frames of several (T, D) tensors, in float64.

        Raises:
            ValueError: if there is no frame.
        """
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for part in features:
            part = part.double()
            count += part.shape[0]
            total = total + part.sum(0)
            squares = squares + part.square().sum(0)
        if count == 0:
            raise ValueError("normalisation needs at least one frame, got none")
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        return cls(mean.float(), deviation.clamp_min(_SMALLEST_DEVIATION).float())

    def apply(self, features: Tensor) -> Tensor:
        """(T, D) with mean 0 and deviation 1 where the frames are those of the fit."""
        return (features - self.mean) / self.deviation
