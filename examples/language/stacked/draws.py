"""Text windows of a run, whose order does not depend on the number of workers."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from examples.language.data_module import Text
from examples.language.stacked.settings import CONTEXT, VOCABULARY, Settings

_VALID_WINDOWS = 4096


class Draws:
    """Windows at random positions of the train split of Python's standard library.

    Args:
        settings: settings of the run.

    """

    def __init__(self, settings: Settings) -> None:
        self._stream = _stream("train")
        shape = (settings.steps, settings.workers, settings.batch_windows)
        generator = np.random.default_rng([settings.seed])
        starts = generator.integers(0, len(self._stream) - CONTEXT - 1, size=np.prod(shape))
        self._starts = torch.from_numpy(starts.reshape(shape))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets (N, B, T) of all workers at a step, counted from 0."""
        return _windows(self._stream, self._starts[step])


def valid_windows() -> tuple[Tensor, Tensor]:
    """Return the inputs and targets (windows, T) of the valid split, at equal intervals."""
    stream = _stream("valid")
    starts = torch.linspace(0, len(stream) - CONTEXT - 2, _VALID_WINDOWS).long()
    return _windows(stream, starts)


def _windows(stream: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    tokens = stream[starts.unsqueeze(-1) + torch.arange(CONTEXT + 1)]
    return tokens[..., :-1], tokens[..., 1:]


@cache
def _stream(split: str) -> Tensor:
    text = Text(context=CONTEXT).corpus.splits[split]
    return torch.from_numpy(text.read(0, len(text))).clamp_(max=VOCABULARY - 1)
