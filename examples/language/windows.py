"""Windows of fixed length over a stream of tokens, and their batches for each rank."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from examples.language.corpus import TokenStream
from examples.rank_batches import StepSampler

# A target that does not count, after the end of the stream; PyTorch's own value for it.
IGNORED = -100


class Batch(NamedTuple):
    """Windows of one batch.

    Attributes:
        inputs: (B, T) int64 tokens.
        targets: (B, T) int64, the token after each input; ``IGNORED`` after the end of the stream.
        bytes: (B,) int64, bytes of text that the targets of each window stand for; None where the
            vocabulary does not tell.
    """

    inputs: Tensor
    targets: Tensor
    bytes: Tensor | None


class WindowDataset(Dataset[Batch]):
    """A stream cut into windows of ``context`` + 1 tokens, of which neighbours share one.

    The stream is preceded by the end-of-document token, so that each of its tokens is the target of
    one window, once. The last window is filled up.

    Args:
        stream: tokens of a split.
        context: T, inputs of a window.
        end: the end-of-document token.
        token_bytes: (vocabulary,) int64, see :class:`~examples.language.vocabulary.Vocabulary`.
    """

    def __init__(
        self, stream: TokenStream, *, context: int, end: int, token_bytes: np.ndarray | None
    ) -> None:
        self._stream = stream
        self._context = context
        self._end = end
        self._token_bytes = None if token_bytes is None else torch.from_numpy(token_bytes)

    def __len__(self) -> int:
        """Number of windows."""
        return math.ceil(len(self._stream) / self._context)

    def __getitem__(self, windows: tuple[int, ...]) -> Batch:
        """Batch of the windows with these numbers."""
        length = self._context + 1
        tokens = np.full((len(windows), length), IGNORED, dtype=np.int64)
        for row, window in zip(tokens, windows, strict=True):
            # Window 0 begins before the stream, with the end-of-document token.
            start = window * self._context - 1
            found = self._stream.read(max(0, start), start + length)
            first = 1 if start < 0 else 0
            row[:first] = self._end
            row[first : first + len(found)] = found
        both = torch.from_numpy(tokens)
        targets = both[:, 1:].contiguous()
        # Any token will do as the input of a target that does not count.
        inputs = both[:, :-1].clone().masked_fill_(both[:, :-1] == IGNORED, self._end)
        counts = None
        if self._token_bytes is not None:
            counts = self._token_bytes[targets.clamp(min=0)]
            counts = counts.masked_fill(targets == IGNORED, 0).sum(1)
        return Batch(inputs, targets, counts)


class WindowSampler(StepSampler[tuple[int, ...]]):
    """Yields the windows of each batch of one rank.

    Shuffled, for training, every batch has ``batch_windows`` windows; the fewer than
    ``batch_windows * world_size`` that are left over are others in each epoch. In order, for
    evaluation, no window is left out, and the sizes of batches differ by at most one.

    Args:
        windows: of the split.
        batch_windows: most windows in a batch of one rank.
        rank: this rank.
        world_size: ranks among which the batches are shared.
        shuffle: draw the order from (seed, epoch), or keep that of the stream.
        seed: of the draws; the same on all ranks.

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
        """Batches of each rank in an epoch."""
        return self._steps

    def _batches(self, draw: np.random.Generator | None) -> list[list[int]]:
        batches = self._steps * self.world_size
        # Views of one array: an epoch of a large corpus has millions of windows.
        if draw is None:
            parts: list[Any] = list(np.array_split(np.arange(self._windows), batches))
        else:
            order = draw.permutation(self._windows)[: batches * self._batch_windows]
            parts = list(order.reshape(batches, self._batch_windows))
        return parts

    def _item(self, batch: list[int]) -> tuple[int, ...]:
        return tuple(int(window) for window in batch)
