"""A corpus of labelled images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images of one size with their labels.

    Attributes:
        images: (N, C, H, W) uint8.
        labels: (N,) int64, from 0.

    Raises:
        ValueError: if there are no images, or a shape or dtype is wrong.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        """Check the shapes and dtypes."""
        if self.images.dim() != 4 or self.images.dtype != torch.uint8:
            raise ValueError(
                f"images must be (N, C, H, W) uint8, got {tuple(self.images.shape)} "
                f"{self.images.dtype}"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels must be ({len(self.images)},) int64, one for each image, got "
                f"{tuple(self.labels.shape)} {self.labels.dtype}"
            )
        if len(self) == 0:
            raise ValueError("a split needs at least one image, got none")

    def __len__(self) -> int:
        """Number of images of the split."""
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Labelled images in up to three splits.

    Attributes:
        name: name of the corpus.
        num_classes: number of classes.
        train, valid, test: splits with images of one size. None: no such split.

    Raises:
        ValueError: if there is no split, sizes differ, or a label is out of range.
    """

    name: str
    num_classes: int
    train: Split | None = None
    valid: Split | None = None
    test: Split | None = None

    def __post_init__(self) -> None:
        """Check the splits."""
        splits = self.splits
        if not splits:
            raise ValueError(f"corpus {self.name} must have at least one split, got none")
        shapes = {tuple(split.images.shape[1:]) for split in splits}
        if len(shapes) > 1:
            raise ValueError(f"images of {self.name} must have one size, got {sorted(shapes)}")
        low = min(int(split.labels.min()) for split in splits)
        high = max(int(split.labels.max()) for split in splits)
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"labels of {self.name} must be from 0 to {self.num_classes - 1}, got {low} to "
                f"{high}"
            )

    @property
    def splits(self) -> list[Split]:
        """The splits that exist."""
        return [split for split in (self.train, self.valid, self.test) if split is not None]

    @property
    def channels(self) -> int:
        """Number of channels: 1 for grey images, 3 for colour images."""
        return int(self.splits[0].images.shape[1])


def random_split(split: Split, count: int, *, seed: int) -> tuple[Split, Split]:
    """Return a random split of ``count`` images, and a split of the other images.

    Raises:
        ValueError: if one of the two would be empty.
    """
    if not 0 < count < len(split):
        raise ValueError(
            f"a split of {len(split)} images can be divided after 1 to {len(split) - 1} images, "
            f"got {count}"
        )
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(split)))
    first, second = order[:count], order[count:]
    return (
        Split(split.images[first], split.labels[first]),
        Split(split.images[second], split.labels[second]),
    )
