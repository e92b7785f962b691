"""Mini-batches counted in frames, as many on each rank."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence

import numpy as np

from examples.rank_batches import StepSampler

log = logging.getLogger(__name__)

# Utterances whose lengths differ by less than this factor may change places between batches.
_BUCKET_WIDTH = 1.1


class FrameBatchSampler(StepSampler[list[int]]):
    """Yields the positions of the utterances of each batch of one rank.

    Utterances of similar length (a bucket) share batches, so that little is padded. Cutting the
    utterances, in order of length, into batches of at most ``batch_frames`` frames gives some
    number of batches that need not be a multiple of the world size: then the batches with the most
    frames are halved until it is. So every utterance is in exactly one batch of one rank. Only
    where no batch can be halved, since each holds a single utterance, the shortest utterances are
    given a second time; ``repeated`` counts them, and the log says so.

    The batches of one step have similar lengths on all ranks, so that no rank waits long for
    another. Which utterances of a bucket share a batch, the order of the steps, and which rank
    takes which batch are drawn from (seed, epoch). The number of batches is the same in all epochs,
    since Lightning asks for it once.

    Args:
        lengths: frames of each utterance.
        batch_frames: most frames in a batch, padding included: utterances times the longest of
            them. One utterance that is longer is a batch of its own.
        rank: this rank.
        world_size: ranks among which the batches are shared.
        shuffle: draw anew each epoch, or always keep the order of lengths.
        seed: of the draws; the same on all ranks.

    Raises:
        ValueError: if there are no utterances, one has no frames, or a number is out of range.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_frames: int = 2048,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        _check(lengths, batch_frames)
        super().__init__(len(lengths), rank=rank, world_size=world_size, shuffle=shuffle, seed=seed)
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
                "be shared evenly among %d ranks",
                self.repeated,
                len(lengths),
                len(self._cuts) - self.repeated,
                world_size,
            )

    def __len__(self) -> int:
        """Batches of each rank in an epoch."""
        return len(self._cuts) // self.world_size

    def _batches(self, draw: np.random.Generator | None) -> list[list[int]]:
        order = self._by_length.copy()
        if draw is not None:
            for start, end in self._buckets:
                draw.shuffle(order[start:end])
        return [order[start:end].tolist() for start, end in self._cuts]

    def _item(self, batch: list[int]) -> list[int]:
        return batch


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
    """Cut sorted lengths where they exceed the shortest of the bucket by the bucket's width."""
    buckets, start = [], 0
    for position, length in enumerate(lengths):
        if length > _BUCKET_WIDTH * lengths[start]:
            buckets.append((start, position))
            start = position
    return [*buckets, (start, len(lengths))]


def _cut(
    bounds: np.ndarray, batch_frames: int, world_size: int
) -> tuple[list[tuple[int, int]], int]:
    """Cut positions into batches, a multiple of ``world_size`` of them.

    Each utterance counts as ``bounds`` frames, the longest of its bucket: shuffling a bucket then
    never breaks the cap, and the cuts are the same in each epoch.

    Returns:
        First and one past the last position of each batch, and how many batches of one utterance
        stand there twice.
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
    """Halve, ``times`` times where it can be done, the batch that has the most frames."""
    # Frames of a batch that can be halved, negative for the smallest-first heap.
    heap = [(-int(bounds[s:e].sum()), s, e) for s, e in cuts if e - s > 1]
    whole = [(s, e) for s, e in cuts if e - s == 1]
    heapq.heapify(heap)
    while heap and times:
        _, start, end = heapq.heappop(heap)
        times -= 1
        middle = (start + end) // 2
        for part in ((start, middle), (middle, end)):
            if part[1] - part[0] > 1:
                heapq.heappush(heap, (-int(bounds[part[0] : part[1]].sum()), *part))
            else:
                whole.append(part)
    return sorted(whole + [(start, end) for _, start, end in heap])
