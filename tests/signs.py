"""Two small parts of GTC as tests want them by themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hier.algorithms.encoding import settle_
from lightning_hier.algorithms.threshold import add_signs_


def dense_signs(words: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    """Signs (+1, 0, -1) of one worker's words, one for each element."""
    signs = torch.zeros(numel, dtype=dtype, device=words.device)
    add_signs_(signs, words)
    return signs


def subtract_sent_(residual: Tensor, words: Tensor, threshold: float) -> None:
    """Turn residual plus gradient into the residual, in place, as after a step."""
    settle_(residual.clone(), residual, words, threshold, None, [])
