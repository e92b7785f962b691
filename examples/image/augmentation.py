"""Shifted and mirrored images, as is usual for CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Moves each image by a few pixels and mirrors every other one.

    Attributes:
        shift: most pixels in each direction; what comes in from outside is 0.
        mirror: swap left and right, with probability 1/2.

    Raises:
        ValueError: if ``shift`` is negative.
    """

    shift: int = 0
    mirror: bool = False

    def __post_init__(self) -> None:
        """Check the range."""
        if self.shift < 0:
            raise ValueError(f"shift must be at least 0 pixels, got {self.shift}")

    def __call__(self, images: Tensor, draw: np.random.Generator) -> Tensor:
        """Change images (N, C, H, W) at random; they are not changed in place."""
        count, _, height, width = images.shape
        if self.shift:
            rows, columns = draw.integers(0, 2 * self.shift + 1, (2, count))
            padded = functional.pad(images, [self.shift] * 4)
            cut = [
                image[:, row : row + height, column : column + width]
                for image, row, column in zip(padded, rows, columns, strict=True)
            ]
            images = torch.stack(cut)
        if self.mirror:
            swapped = torch.from_numpy(draw.random(count) < 0.5)
            images = torch.where(swapped[:, None, None, None], images.flip(-1), images)
        return images
