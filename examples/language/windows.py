"""Windows of fixed length over a stream of tokens, and their batches for each rank."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from examples.rank_batches import StepSampler

# Target after the end of the stream, which the loss ignores (PyTorch's default ignore_index).
IGNORED = -100


class Batch(NamedTuple):
    """Windows of one batch.

    Attributes:
        inputs: (B, T) int64, tokens.
        targets: (B, T) int64, the token after each input. ``IGNORED`` after the end of the stream.
        bytes: (B,) int64, number of bytes of text that the targets of each window represent.

    """

    inputs: Tensor
    targets: Tensor
    bytes: Tensor


class WindowDataset(Dataset[Batch]):
    """Windows of ``context`` + 1 tokens of a stream. Consecutive windows overlap by one token.

    The end-of-document token is put before the stream, so that each token of the stream is a target
    exactly once. The last window is padded.

    Args:
        stream: (N,) tokens of a split.
        context: T, number of inputs of a window.
        end: end-of-document token.
        token_bytes: (vocabulary,) int64, see :class:`~examples.language.vocabulary.Vocabulary`.

    """

    def __init__(
        self, stream: np.ndarray, *, context: int, end: int, token_bytes: np.ndarray
    ) -> None:
        self._stream = stream
        self._context = context
        self._end = end
        self._token_bytes = torch.from_numpy(token_bytes)

    def __len__(self) -> int:
        """Return the number of windows."""
        return math.ceil(len(self._stream) / self._context)

    def __getitem__(self, windows: tuple[int, ...]) -> Batch:
        """Return the batch of the windows with these indices."""
        length = self._context + 1
        rows = np.full((len(windows), length), IGNORED, dtype=np.int64)
        for row, window in zip(rows, windows, strict=True):
            # Window 0 begins before the stream, with the end-of-document token.
            start = window * self._context - 1
            segment = self._stream[max(0, start) : start + length]
            first = 1 if start < 0 else 0
            row[:first] = self._end
            row[first : first + len(segment)] = segment
        tokens = torch.from_numpy(rows)
        targets = tokens[:, 1:].contiguous()
        # Inputs of ignored targets may be any valid token.
        inputs = tokens[:, :-1].clone().masked_fill_(tokens[:, :-1] == IGNORED, self._end)
        byte_counts = self._token_bytes[targets.clamp(min=0)]
        return Batch(inputs, targets, byte_counts.masked_fill(targets == IGNORED, 0).sum(1))


class WindowSampler(StepSampler[tuple[int, ...]]):
    """Yield the window indices of each batch of one rank.

    With ``shuffle``, for training, every batch has ``batch_windows`` windows. An epoch omits fewer
    than ``batch_windows * world_size`` windows, different ones in each epoch. Without it, for
    evaluation, no window is omitted, and the sizes of batches differ by at most one.

    Args:
        windows: number of windows of the split.
        batch_windows: maximum number of windows in a batch of one rank.
        rank: this rank.
        world_size: number of ranks among which the batches are divided.
        shuffle: whether to draw the order from (seed, epoch) instead of that of the stream.
        seed: seed of the order, the same on all ranks.

    Raises:
        ValueError: a number is out of range, or there are too few windows.

    """

    def __init__(
        self,
        windows: int,
        *,
        batch_windows: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(windows, rank=rank, world_size=world_size, shuffle=shuffle, seed=seed)
        if batch_windows < 1:
            raise ValueError(f"batch_windows must be at least 1, got {batch_windows}")
        self._windows = windows
        self._batch_windows = batch_windows
        per_step = batch_windows * world_size
        self._steps = windows // per_step if shuffle else math.ceil(windows / per_step)
        if self._steps < 1 or self._steps * world_size > windows:
            raise ValueError(
                f"{windows} windows don't fill a batch of {batch_windows} on each of {world_size} "
                "ranks; take a smaller batch_windows or context, fewer ranks, or more text"
            )

    def __len__(self) -> int:
        """Return the number of batches of each rank in an epoch."""
        return self._steps

    def _batches(self, draw: np.random.Generator | None) -> list[list[int]]:
        batches = self._steps * self.world_size
        # Views of one array, because an epoch of a large corpus has millions of windows.
        if draw is None:
            parts: list[Any] = list(np.array_split(np.arange(self._windows), batches))
        else:
            order = draw.permutation(self._windows)[: batches * self._batch_windows]
            parts = list(order.reshape(batches, self._batch_windows))
        return parts

    def _item(self, batch: list[int]) -> tuple[int, ...]:
        return tuple(int(window) for window in batch)
