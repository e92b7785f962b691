"""Base classes of the samplers of the examples, with equally many batches for each rank.

:class:`BatchIndex` is a batch of data that are augmented.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class BatchIndex(NamedTuple):
    """Items of a batch, as an index of a data set.

    Attributes:
        epoch: index of the epoch, which determines the augmentation.
        positions: positions of the items in the split.

    """

    epoch: int
    positions: tuple[int, ...]


class StepSampler(DistributedSampler[Any], ABC):
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

    def __init__(
        self,
        items: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
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

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this rank in the epoch of ``set_epoch``."""
        draw = np.random.default_rng([self.seed, self.epoch]) if self.shuffle else None
        batches = self._batches(draw)
        steps = [batches[i : i + self.world_size] for i in range(0, len(batches), self.world_size)]
        if draw is not None:
            draw.shuffle(steps)
            for step in steps:
                draw.shuffle(step)
        for step in steps:
            yield self._item(step[self.rank])

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of a rank in an epoch."""

    @abstractmethod
    def _batches(self, draw: np.random.Generator | None) -> list[np.ndarray]:
        """Return the batches, ordered so that adjacent ones have similar cost.

        Their number is a multiple of the world size.
        """

    def _item(self, batch: np.ndarray) -> Any:
        """Return the index of a batch for the data set."""
        return batch.tolist()


class EvenSampler(StepSampler):
    """Yields batches whose sizes differ by at most one item.

    Their number is the smallest possible multiple of the world size, and every item is used once.

    Args:
        items: number of items of the data set.
        batch_items: largest number of items in a batch of one rank.
        whole: whether every batch has ``batch_items`` items. An epoch then omits less than a step,
            other items in each epoch if they are shuffled.
        options: further arguments of :class:`StepSampler`.

    Raises:
        ValueError: a number is out of range, or there are fewer items than batches.
    """

    def __init__(
        self, items: int, *, batch_items: int, whole: bool = False, **options: Any
    ) -> None:
        super().__init__(items, **options)
        if batch_items < 1:
            raise ValueError(f"a batch must have at least 1 item, got {batch_items}")
        in_step = batch_items * self.world_size
        self._steps = items // in_step if whole else math.ceil(items / in_step)
        self._used = self._steps * in_step if whole else items
        if not 0 < self._steps * self.world_size <= items:
            raise ValueError(
                f"{items} items don't fill batches of {batch_items} on each of {self.world_size} "
                "ranks; take fewer ranks, another size of batches, or more data"
            )

    def __len__(self) -> int:
        """Return the number of batches of a rank in an epoch."""
        return self._steps

    def _order(self, draw: np.random.Generator | None) -> np.ndarray:
        """Return the items, ordered so that adjacent ones have similar cost."""
        items = len(self.dataset)  # type: ignore[arg-type]
        return np.arange(items) if draw is None else draw.permutation(items)

    def _batches(self, draw: np.random.Generator | None) -> list[np.ndarray]:
        # Views of one array, because an epoch of a large corpus has millions of items.
        order = self._order(draw)[: self._used]
        return np.array_split(order, self._steps * self.world_size)


def rank_loader(
    dataset: Dataset[Any], sampler: StepSampler, *, num_workers: int = 0
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
