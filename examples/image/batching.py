"""Batches of images, equally many on each rank."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from examples.image.augmentation import Augmentation
from examples.image.corpus import Split
from examples.rank_batches import StepSampler


class Draw(NamedTuple):
    """What a data set needs to know to make a batch.

    Attributes:
        epoch: that the batch is of; the augmentation is drawn for it.
        positions: of the images.
    """

    epoch: int
    positions: tuple[int, ...]


class Batch(NamedTuple):
    """A mini-batch.

    Attributes:
        images: (B, C, H, W) float32, normalised.
        labels: (B,) int64.
    """

    images: Tensor
    labels: Tensor


class ImageSampler(StepSampler[Draw]):
    """Yields the images of each batch of one rank.

    The images are cut into the smallest multiple of the world size of batches that have at most
    ``batch_images`` images. Sizes differ by at most one; no image is left out or given twice.

    Args:
        images: of the split.
        batch_images: most images in a batch of one rank.
        rank: this rank.
        world_size: ranks among which the batches are shared.
        shuffle: draw anew each epoch, or keep the order of the split.
        seed: of the draws; the same on all ranks.

    Raises:
        ValueError: a number is out of range, or there are fewer images than batches.
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
        """Batches of each rank in an epoch."""
        return self._steps

    def _batches(self, draw: np.random.Generator | None) -> list[list[int]]:
        order = np.arange(self._images) if draw is None else draw.permutation(self._images)
        return [part.tolist() for part in np.array_split(order, self._steps * self.world_size)]

    def _item(self, batch: list[int]) -> Draw:
        return Draw(self.epoch, tuple(batch))


class ImageDataset(Dataset[Batch]):
    """Images of a split, indexed by the draws of an ``ImageSampler``.

    Args:
        split: of a corpus.
        mean: (C,) of the train split's values, from 0 to 1.
        deviation: (C,), likewise.
        augmentation: what training does to the images, or None.
        seed: of the augmentation.
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
        """Images of the split."""
        return len(self._split)

    def __getitem__(self, draw: Draw) -> Batch:
        """Batch of the images at the drawn positions."""
        positions = torch.tensor(draw.positions)
        images = self._split.images[positions]
        if self._augmentation is not None:
            # An image is in one batch of an epoch, so its position tells batches apart.
            key = [self._seed, draw.epoch, draw.positions[0]]
            images = self._augmentation(images, np.random.default_rng(key))
        values = (images.float() / 255 - self._mean) / self._deviation
        return Batch(values, self._split.labels[positions])


def mean_and_deviation(split: Split) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, (C,) float32, for values from 0 to 1."""
    # In float64, channel by channel: squares of 50,000 coloured images would fill memory.
    channels = [channel.double() / 255 for channel in split.images.unbind(1)]
    mean = torch.stack([channel.mean() for channel in channels])
    deviation = torch.stack([channel.std(correction=0) for channel in channels])
    # A channel that is the same everywhere stays 0.
    return mean.float(), deviation.clamp(min=1e-6).float()
