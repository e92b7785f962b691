"""Batches of lines of similar width, with the same number of batches on each rank."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from examples.rank_batches import BatchIndex, StepSampler

log = logging.getLogger(__name__)

# Shuffling changes the order of lines only if their widths differ by less than this factor.
_BUCKET_WIDTH = 1.2


class LineBatchSampler(StepSampler[BatchIndex]):
    """Yields the batches of one rank.

    The lines are sorted by width and divided into batches of at most ``batch_lines`` lines. The
    number of batches is the smallest possible multiple of the world size, and their sizes differ by
    at most one. No line is dropped. If there are fewer lines than batches, some lines are used
    twice in an epoch, with a warning.

    All ranks have batches of similar widths in the same step, so that they finish it at about the
    same time. Shuffling changes the order of lines of similar width, the order of the steps, and
    the assignment of batches to ranks. It depends only on (seed, epoch).

    Args:
        widths: width of each line in pixels.
        batch_lines: maximum number of lines in a batch of one rank.
        rank: rank of the batches.
        world_size: number of ranks.
        shuffle: whether to shuffle in each epoch. Otherwise, batches are sorted by width.
        seed: seed of the random generators, equal on all ranks.

    Attributes:
        repeated: number of lines that are used twice in an epoch.

    Raises:
        ValueError: if there are no lines, or a number is out of range.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        batch_lines: int = 16,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        _check(widths, batch_lines)
        super().__init__(len(widths), rank=rank, world_size=world_size, shuffle=shuffle, seed=seed)
        self.batch_lines = batch_lines
        self._log_widths = np.log(np.asarray(widths, dtype=np.float64))
        self._steps = math.ceil(len(widths) / (batch_lines * world_size))
        batches = self._steps * world_size
        self.repeated = max(0, batches - len(widths))
        self._sizes = [part.size for part in np.array_split(np.arange(len(widths)), batches)]
        if self.repeated:
            rank_zero_only(log.warning)(
                "%d of %d lines are given twice per epoch, so that each of %d ranks has %d batches",
                self.repeated,
                len(widths),
                world_size,
                self._steps,
            )

    def __len__(self) -> int:
        """Number of batches of each rank in an epoch."""
        return self._steps

    def _batches(self, generator: np.random.Generator | None) -> list[list[int]]:
        keys = self._log_widths
        if generator is not None:
            keys = keys + generator.uniform(0, math.log(_BUCKET_WIDTH), len(keys))
        return self._divide(np.argsort(keys, kind="stable").tolist())

    def _item(self, batch: list[int]) -> BatchIndex:
        return BatchIndex(self.epoch, tuple(batch))

    def _divide(self, order: list[int]) -> list[list[int]]:
        ends = np.cumsum(self._sizes).tolist()
        batches = [order[end - n : end] for n, end in zip(self._sizes, ends, strict=True)]
        # Empty batches are the last ones. They get the narrowest lines, which cost least.
        full = len(batches) - self.repeated
        return batches[:full] + [batches[i % full] for i in range(self.repeated)]


def _check(widths: Sequence[int], batch_lines: int) -> None:
    if len(widths) == 0:
        raise ValueError("batches need at least one line, got none; is the split empty?")
    if min(widths) < 1:
        raise ValueError(f"every line must be at least 1 pixel wide, got {min(widths)}")
    if batch_lines < 1:
        raise ValueError(f"batch_lines must be at least 1, got {batch_lines}")
