"""Best path decoding of CTC: the most probable output of every frame, collapsed."""

from __future__ import annotations

from itertools import groupby

from torch import Tensor

from examples.ocr.alphabet import BLANK


def best_paths(log_probs: Tensor, lengths: Tensor) -> list[list[int]]:
    """Take the best output of each frame, merge equal neighbours, and drop the blanks.

    Args:
        log_probs: (T, B, C) scores in any monotone scale.
        lengths: (B,) frames of each line; what lies beyond is not read.

    Returns:
        The numbers of each line's characters.
    """
    paths = log_probs.argmax(dim=-1).t().tolist()
    return [collapse(path[:length]) for path, length in zip(paths, lengths.tolist(), strict=True)]


def collapse(path: list[int]) -> list[int]:
    """Merge equal neighbours of a path, then drop the blanks."""
    return [output for output, _ in groupby(path) if output != BLANK]
