"""Best path decoding of CTC outputs."""

from __future__ import annotations

from itertools import groupby

from torch import Tensor

from examples.ocr.alphabet import BLANK


def best_paths(log_probs: Tensor, lengths: Tensor) -> list[list[int]]:
    """Decode each line by the most probable output of each frame.

    Args:
        log_probs: log probabilities (T, B, C), or other scores in the same order.
        lengths: (B,) number of frames of each line.

    Returns:
        The indices of the characters of each line.
    """
    paths = log_probs.argmax(dim=-1).t().tolist()
    return [collapse(path[:length]) for path, length in zip(paths, lengths.tolist(), strict=True)]


def collapse(path: list[int]) -> list[int]:
    """Merge repeated outputs of a path, then remove the blanks."""
    return [output for output, _ in groupby(path) if output != BLANK]
