"""Random shift and horizontal flip of images, as is usual for CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Shifts images by a few pixels, and flips half of them horizontally.

    Attributes:
        shift: maximum shift in each direction in pixels. Pixels from outside the image are 0.
        mirror: flip images horizontally with probability 1/2.

    Raises:
        ValueError: if ``shift`` is negative.
    """

    shift: int = 0
    mirror: bool = False

    def __post_init__(self) -> None:
        """Check the range."""
        if self.shift < 0:
            raise ValueError(f"shift must be at least 0 pixels, got {self.shift}")

    def __call__(self, images: Tensor, generator: np.random.Generator) -> Tensor:
        """Return shifted and flipped images (N, C, H, W). The input does not change."""
        count, _, height, width = images.shape
        if self.shift:
            rows, columns = generator.integers(0, 2 * self.shift + 1, (2, count))
            padded = functional.pad(images, [self.shift] * 4)
            shifted = [
                image[:, row : row + height, column : column + width]
                for image, row, column in zip(padded, rows, columns, strict=True)
            ]
            images = torch.stack(shifted)
        if self.mirror:
            flipped = torch.from_numpy(generator.random(count) < 0.5)
            images = torch.where(flipped[:, None, None, None], images.flip(-1), images)
        return images
