"""Labelled images in up to three splits."""

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
        ValueError: no images, other shapes or other dtypes.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        """Check what batches rely on."""
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
        """Images of the split."""
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Labelled images in up to three splits.

    Attributes:
        name: of the corpus.
        num_classes: labels are smaller than it.
        train, valid, test: images of one size; None where there are none.

    Raises:
        ValueError: there is no split, sizes differ, or a label is out of range.
    """

    name: str
    num_classes: int
    train: Split | None = None
    valid: Split | None = None
    test: Split | None = None

    def __post_init__(self) -> None:
        """Check what the model relies on."""
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
        """Those that there are."""
        return [split for split in (self.train, self.valid, self.test) if split is not None]

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for coloured ones."""
        return int(self.splits[0].images.shape[1])


def take_out(split: Split, count: int, *, seed: int) -> tuple[Split, Split]:
    """Divide a split at random into ``count`` images and the rest: the former, then the latter.

    Raises:
        ValueError: one of the two would be empty.
    """
    if not 0 < count < len(split):
        raise ValueError(f"of {len(split)} images from 1 to {len(split) - 1} may go, got {count}")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(split)))
    taken, rest = order[:count], order[count:]
    return (
        Split(split.images[taken], split.labels[taken]),
        Split(split.images[rest], split.labels[rest]),
    )
