"""The DataModule of the image example: the handwritten digits of scikit-learn."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.rank_batches import StepSampler, rank_and_world_size, rank_loader

_SPLITS = {"test": slice(0, 300), "valid": slice(300, 600), "train": slice(600, None)}


class Batch(NamedTuple):
    """A mini-batch.

    Attributes:
        images: (B, C, H, W) float32, normalised.
        labels: (B,) int64.
    """

    images: Tensor
    labels: Tensor


class ImageSampler(StepSampler[list[int]]):
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

    def _item(self, batch: list[int]) -> list[int]:
        return batch


class DigitBatches(Dataset[Batch]):
    """The images of a split, indexed by the items of an ``ImageSampler``."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        """Number of images of the split."""
        return len(self._labels)

    def __getitem__(self, positions: list[int]) -> Batch:
        """Return the batch of the images at ``positions``."""
        return Batch(self._images[positions], self._labels[positions])


class Images(LightningDataModule):
    """The 1797 digits of 8 x 8 pixels: 1197 to train, 300 for validation, 300 to test.

    Images are normalised by the mean and standard deviation of the train split.

    Every rank has the same number of batches, which an ``ImageSampler`` creates. Set
    ``use_distributed_sampler=False`` in the Trainer, because the data module already distributes
    the batches.

    Args:
        batch_images: maximum number of images in a batch of one rank.
        seed: seed of the order of the batches.
    """

    num_classes = 10
    image_channels = 1

    def __init__(self, batch_images: int = 16, seed: int = 0) -> None:
        super().__init__()
        self.batch_images = batch_images
        self.seed = seed
        self.splits: dict[str, DigitBatches] = {}

    def setup(self, stage: str) -> None:
        """Load the digits, which are installed with scikit-learn."""
        from sklearn.datasets import load_digits  # slow import

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        values = torch.from_numpy(digits.images[order]).float().unsqueeze(1)
        labels = torch.from_numpy(digits.target[order]).long()
        train = values[_SPLITS["train"]]
        images = (values - train.mean()) / train.std(correction=0)
        self.splits = {
            name: DigitBatches(images[part], labels[part]) for name, part in _SPLITS.items()
        }

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a different order in each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader("valid")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader("test")

    def _loader(self, split: str, *, shuffle: bool = False) -> DataLoader[Batch]:
        rank, world_size = rank_and_world_size(self.trainer)
        dataset = self.splits[split]
        sampler = ImageSampler(
            len(dataset),
            batch_images=self.batch_images,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler, num_workers=0)
