"""Two operations of GTC that tests call separately."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.kernels import gtc


def select_words(values: Tensor, threshold: float) -> Tensor:
    """Return the words of the elements whose magnitude exceeds the threshold."""
    nothing = torch.zeros_like(values)
    return gtc.encode_(values.clone(), nothing, threshold)[0]


def subtract_sent_(residual: Tensor, words: Tensor, threshold: float) -> None:
    """Replace the sum of residual and gradient by the new residual, in place, as a step does."""
    values = residual.clone()
    gtc.decode_(values, residual, words, threshold, [], [])
