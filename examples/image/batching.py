"""Batches of images, with the same number of batches on each rank."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from examples.image.augmentation import Augmentation
from examples.image.corpus import Split
from examples.rank_batches import BatchIndex, StepSampler


class Batch(NamedTuple):
    """A mini-batch.

    Attributes:
        images: (B, C, H, W) float32, normalised.
        labels: (B,) int64.
    """

    images: Tensor
    labels: Tensor


class ImageSampler(StepSampler[BatchIndex]):
    """Yields the batches of one rank.

    The images are divided into batches of at most ``batch_images`` images. The number of batches is
    the smallest possible multiple of the world size, and their sizes differ by at most one. Every
    image is used once.

    Args:
        images: number of images of the split.
        batch_images: maximum number of images in a batch of one rank.
        rank: rank of the batches.
        world_size: number of ranks.
        shuffle: whether to shuffle in each epoch. Otherwise, the order is that of the split.
        seed: seed of the random generators, equal on all ranks.

    Raises:
        ValueError: if a number is out of range, or there are fewer images than batches.
    """

    def __init__(
        self,
        images: int,
        *,
        batch_images: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(images, rank=rank, world_size=world_size, shuffle=shuffle, seed=seed)
        if batch_images < 1:
            raise ValueError(f"batch_images must be at least 1, got {batch_images}")
        self._images = images
        self._steps = math.ceil(images / (batch_images * world_size))
        if self._steps * world_size > images:
            raise ValueError(
                f"{images} images don't fill {self._steps} batches on each of {world_size} ranks; "
                "take fewer ranks or a larger batch_images"
            )

    def __len__(self) -> int:
        """Number of batches of each rank in an epoch."""
        return self._steps

    def _batches(self, generator: np.random.Generator | None) -> list[list[int]]:
        images = self._images
        order = np.arange(images) if generator is None else generator.permutation(images)
        return [part.tolist() for part in np.array_split(order, self._steps * self.world_size)]

    def _item(self, batch: list[int]) -> BatchIndex:
        return BatchIndex(self.epoch, tuple(batch))


class ImageDataset(Dataset[Batch]):
    """Images of a split, indexed by the items of an ``ImageSampler``.

    Args:
        split: the split.
        mean: (C,) mean of the train split, for values from 0 to 1.
        deviation: (C,) standard deviation of the train split.
        augmentation: random shift and flip of the images, or None.
        seed: seed of the augmentation.
    """

    def __init__(
        self,
        split: Split,
        *,
        mean: Tensor,
        deviation: Tensor,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> None:
        self._split = split
        self._mean = mean[:, None, None]
        self._deviation = deviation[:, None, None]
        self._augmentation = augmentation
        self._seed = seed

    def __len__(self) -> int:
        """Number of images of the split."""
        return len(self._split)

    def __getitem__(self, index: BatchIndex) -> Batch:
        """Return the batch of the images at ``index.positions``."""
        positions = torch.tensor(index.positions)
        images = self._split.images[positions]
        if self._augmentation is not None:
            # Different in each batch, because an image is in only one batch of an epoch.
            key = [self._seed, index.epoch, index.positions[0]]
            images = self._augmentation(images, np.random.default_rng(key))
        values = (images.float() / 255 - self._mean) / self._deviation
        return Batch(values, self._split.labels[positions])


def mean_and_deviation(split: Split) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each channel (C,) float32, for values 0 to 1."""
    # One channel at a time, because 50,000 colour images in float64 need much memory.
    channels = [channel.double() / 255 for channel in split.images.unbind(1)]
    mean = torch.stack([channel.mean() for channel in channels])
    deviation = torch.stack([channel.std(correction=0) for channel in channels])
    # The minimum avoids a division by 0 for constant channels.
    return mean.float(), deviation.clamp(min=1e-6).float()
