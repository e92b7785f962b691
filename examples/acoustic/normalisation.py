"""Mean and variance normalisation of features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# Limits the scale of features that are almost constant, such as filters above the band of the
# recording.
_SMALLEST_DEVIATION = 1e-3


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each feature.

    Attributes:
        mean: (D,) float32, mean over frames.
        deviation: (D,) float32, standard deviation over frames.
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, features: Iterable[Tensor]) -> Normalisation:
        """Estimate mean and deviation over all frames of several (T, D) tensors, in float64.

        Raises:
            ValueError: there is no frame.
        """
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for frames in features:
            frames = frames.double()
            count += frames.shape[0]
            total = total + frames.sum(0)
            squares = squares + frames.square().sum(0)
        if count == 0:
            raise ValueError("normalisation needs at least one frame, got none")
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        return cls(mean.float(), deviation.clamp_min(_SMALLEST_DEVIATION).float())

    def apply(self, features: Tensor) -> Tensor:
        """Return features (T, D), shifted and scaled to mean 0 and deviation 1."""
        return (features - self.mean) / self.deviation
