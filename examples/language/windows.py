"""Windows of fixed length over a stream of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

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

    def __getitem__(self, windows: Sequence[int]) -> Batch:
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
