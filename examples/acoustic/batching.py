"""Mini-batches of a limited number of frames, equally many on each rank."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from examples.rank_batches import StepSampler

log = logging.getLogger(__name__)

# Largest ratio of lengths in a bucket. Shuffling exchanges utterances within a bucket.
_BUCKET_WIDTH = 1.1


class FrameBatchSampler(StepSampler):
    """Yields the positions of the utterances of each batch of one rank.

    Batches contain utterances of similar length (a bucket), which need little padding. The
    utterances, in order of length, are split into batches of at most ``batch_frames`` frames. If
    their number is not a multiple of the world size, the batches with the most frames are halved
    until it is. So every utterance is in exactly one batch of one rank. If no batch can be halved,
    because each contains one utterance, the shortest utterances are used twice. A warning reports
    their number, which is ``repeated``.

    The batches of one step have similar lengths on all ranks, so that ranks do not wait long for
    each other. The utterances of a bucket, the steps, and the batches of a step are shuffled by
    (seed, epoch). The number of batches is the same in all epochs, because Lightning reads it once.

    Args:
        lengths: number of frames of each utterance.
        batch_frames: largest number of frames of a batch, including padding: number of utterances
            times the length of the longest one. A longer utterance is a batch by itself.
        options: further arguments of :class:`~examples.rank_batches.StepSampler`.

    Raises:
        ValueError: there are no utterances, one has no frames, or an argument is out of range.
    """

    def __init__(self, lengths: Sequence[int], *, batch_frames: int = 2048, **options: Any) -> None:
        _check(lengths, batch_frames)
        super().__init__(len(lengths), **options)
        world_size = self.world_size
        self.batch_frames = batch_frames
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._by_length = np.argsort(self._lengths, kind="stable")
        self._buckets = _bucket_starts(self._lengths[self._by_length])
        bounds = np.repeat(
            [self._lengths[self._by_length[end - 1]] for _, end in self._buckets],
            [end - start for start, end in self._buckets],
        )
        self._cuts, self.repeated = _cut(bounds, batch_frames, world_size)
        if self.repeated:
            log.warning(
                "%d of %d utterances are given twice per epoch: %d batches of one utterance cannot "
                "be distributed evenly among %d ranks",
                self.repeated,
                len(lengths),
                len(self._cuts) - self.repeated,
                world_size,
            )

    def __len__(self) -> int:
        """Return the number of batches of a rank in an epoch."""
        return len(self._cuts) // self.world_size

    def _batches(self, draw: np.random.Generator | None) -> list[np.ndarray]:
        order = self._by_length.copy()
        if draw is not None:
            for start, end in self._buckets:
                draw.shuffle(order[start:end])
        return [order[start:end] for start, end in self._cuts]


def _check(lengths: Sequence[int], batch_frames: int) -> None:
    if len(lengths) == 0:
        raise ValueError("batches need at least one utterance, got none; is the split empty?")
    if min(lengths) < 1:
        raise ValueError(
            f"every utterance needs at least 1 frame, number {int(np.argmin(lengths))} has "
            f"{min(lengths)}"
        )
    if batch_frames < 1:
        raise ValueError(f"batch_frames must be at least 1, got {batch_frames}")


def _bucket_starts(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Split sorted lengths into buckets: first position, and first position after the bucket."""
    buckets, start = [], 0
    for position, length in enumerate(lengths):
        if length > _BUCKET_WIDTH * lengths[start]:
            buckets.append((start, position))
            start = position
    return [*buckets, (start, len(lengths))]


def _cut(
    bounds: np.ndarray, batch_frames: int, world_size: int
) -> tuple[list[tuple[int, int]], int]:
    """Split positions into batches, whose number is a multiple of ``world_size``.

    Args:
        bounds: length of the longest utterance of the bucket of each position. With these lengths,
            shuffled batches never exceed ``batch_frames``, and are the same ranges in each epoch.
        batch_frames: largest number of frames of a batch.
        world_size: number of ranks.

    Returns:
        First position, and first position after the batch, for each batch; and the number of
        batches that are repeated.
    """
    cuts, start = [], 0
    for position in range(1, len(bounds) + 1):
        full = position < len(bounds) and bounds[position] * (position + 1 - start) > batch_frames
        if position == len(bounds) or full:
            cuts.append((start, position))
            start = position
    cuts = _halve(cuts, bounds, -len(cuts) % world_size)
    repeated = -len(cuts) % world_size
    return sorted(cuts + [cuts[i % len(cuts)] for i in range(repeated)]), repeated


def _halve(cuts: list[tuple[int, int]], bounds: np.ndarray, times: int) -> list[tuple[int, int]]:
    """Halve the batch with the most frames, ``times`` times or until none can be halved."""
    # Batches that can be halved. The number of frames is negative, because heapq has min-heaps.
    heap = [(-int(bounds[s:e].sum()), s, e) for s, e in cuts if e - s > 1]
    single = [(s, e) for s, e in cuts if e - s == 1]
    heapq.heapify(heap)
    while heap and times:
        _, start, end = heapq.heappop(heap)
        times -= 1
        middle = (start + end) // 2
        for half in ((start, middle), (middle, end)):
            if half[1] - half[0] > 1:
                heapq.heappush(heap, (-int(bounds[half[0] : half[1]].sum()), *half))
            else:
                single.append(half)
    return sorted(single + [(start, end) for _, start, end in heap])
