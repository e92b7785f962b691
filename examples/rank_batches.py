"""Base class of the samplers of the examples, with equally many batches for each rank.

:class:`BatchIndex` is a batch of data that are augmented.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import lightning.pytorch as pl
import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Item = TypeVar("Item")


class BatchIndex(NamedTuple):
    """Items of a batch, as an index of a data set.

    Attributes:
        epoch: index of the epoch, which determines the augmentation.
        positions: positions of the items in the split.

    """

    epoch: int
    positions: tuple[int, ...]


class StepSampler(DistributedSampler[Item], ABC):
    """Yields the batches of one rank. Each step has one batch for each rank.

    The steps, and the batches of a step, are shuffled by (seed, epoch).

    The base class is DistributedSampler, so that Lightning does not replace the sampler and calls
    ``set_epoch``. Use it with :func:`rank_loader`.

    Args:
        items: number of items of the data set.
        rank: rank of this process.
        world_size: number of ranks among which the batches are distributed.
        shuffle: whether to shuffle in each epoch.
        seed: seed of the shuffling, the same on all ranks.

    Raises:
        ValueError: rank or world size is out of range.
    """

    def __init__(self, items: int, *, rank: int, world_size: int, shuffle: bool, seed: int) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to world_size - 1, got {rank} of {world_size}")
        super().__init__(
            range(items),  # type: ignore[arg-type]  # only its length is used
            num_replicas=world_size,
            rank=rank,
            shuffle=shuffle,
            seed=seed,
        )
        self.world_size = world_size

    def steps(self, epoch: int) -> list[list[list[int]]]:
        """Return all steps of an epoch, each with one batch for each rank."""
        draw = np.random.default_rng([self.seed, epoch]) if self.shuffle else None
        batches = self._batches(draw)
        steps = [batches[i : i + self.world_size] for i in range(0, len(batches), self.world_size)]
        if draw is not None:
            draw.shuffle(steps)
            for step in steps:
                draw.shuffle(step)
        return steps

    def __iter__(self) -> Iterator[Item]:
        """Yield the batches of this rank in the epoch of ``set_epoch``."""
        for step in self.steps(self.epoch):
            yield self._item(step[self.rank])

    @abstractmethod
    def _batches(self, draw: np.random.Generator | None) -> list[list[int]]:
        """Return the batches, ordered so that adjacent ones have similar cost.

        Their number is a multiple of the world size.
        """

    @abstractmethod
    def _item(self, batch: list[int]) -> Item:
        """Return the index of a batch for the data set."""


def rank_loader(
    dataset: Dataset[Any], sampler: StepSampler[Any], *, num_workers: int
) -> DataLoader[Any]:
    """Return a loader of the batches of one rank."""
    # batch_size=None, because the items of the sampler are whole batches.
    return DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def rank_and_world_size(trainer: pl.Trainer | None) -> tuple[int, int]:
    """Return rank and world size, after the Trainer has started its processes."""
    if trainer is not None:
        return trainer.global_rank, trainer.world_size
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
