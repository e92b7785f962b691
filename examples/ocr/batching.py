"""Batches of lines of similar width, as many on each rank."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from examples.rank_batches import StepSampler

log = logging.getLogger(__name__)

# Lines whose widths differ by less than this factor may share a batch in one epoch, not in another.
_BUCKET_WIDTH = 1.2


class Draw(NamedTuple):
    """What a data set needs to know to make a batch.

    Attributes:
        epoch: that the batch is of; the augmentation is drawn for it.
        positions: of the lines.
    """

    epoch: int
    positions: tuple[int, ...]


class LineBatchSampler(StepSampler[Draw]):
    """Yields the lines of each batch of one rank.

    The lines, in order of their widths, are cut into the smallest multiple of the world size of
    batches that have at most ``batch_lines`` lines. The sizes of the batches differ by at most one,
    so no line is dropped. Only where there are fewer lines than batches some lines are given twice
    in an epoch; ``repeated`` counts them, and the log says so.

    The batches of one step have similar widths on all ranks, so that no rank waits long for
    another. Shuffling blurs the order of widths a little, and draws the order of the steps and the
    rank of each batch; all of it from (seed, epoch).

    Args:
        widths: pixels of each line.
        batch_lines: most lines in a batch of one rank.
        rank: this rank.
        world_size: ranks among which the batches are shared.
        shuffle: draw anew each epoch, or always keep the order of widths.
        seed: of the draws; the same on all ranks.

    Raises:
        ValueError: if there are no lines or a number is out of range.
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
        """Batches of each rank in an epoch."""
        return self._steps

    def _batches(self, draw: np.random.Generator | None) -> list[list[int]]:
        keys = self._log_widths
        if draw is not None:
            keys = keys + draw.uniform(0, math.log(_BUCKET_WIDTH), len(keys))
        return self._cut(np.argsort(keys, kind="stable").tolist())

    def _item(self, batch: list[int]) -> Draw:
        return Draw(self.epoch, tuple(batch))

    def _cut(self, order: list[int]) -> list[list[int]]:
        ends = np.cumsum(self._sizes).tolist()
        batches = [order[end - n : end] for n, end in zip(self._sizes, ends, strict=True)]
        # The empty ones stand last; the narrowest lines are the cheapest to give again.
        full = len(batches) - self.repeated
        return batches[:full] + [batches[i % full] for i in range(self.repeated)]


def _check(widths: Sequence[int], batch_lines: int) -> None:
    if len(widths) == 0:
        raise ValueError("batches need at least one line, got none; is the split empty?")
    if min(widths) < 1:
        raise ValueError(f"every line must be at least 1 pixel wide, got {min(widths)}")
    if batch_lines < 1:
        raise ValueError(f"batch_lines must be at least 1, got {batch_lines}")
