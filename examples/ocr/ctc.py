"""The CTC loss of text lines, and what of a batch it can be computed for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from examples.ocr.alphabet import BLANK


def frames_needed(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """Count the frames that CTC needs at least: one per character, one more per repetition.

    Args:
        targets: (B, L) int64, padded beyond each length.
        target_lengths: (B,).

    Returns:
        (B,) int64. A blank must stand between two equal neighbours.
    """
    position = torch.arange(1, targets.shape[1], device=targets.device)
    repeated = (targets[:, 1:] == targets[:, :-1]) & (position < target_lengths.unsqueeze(1))
    return target_lengths + repeated.sum(dim=1)


def ctc_losses(
    log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """CTC loss of every line, and which lines have one.

    A line with more characters than its frames can hold has no alignment: its loss would be
    infinite and its gradient not a number. It gets loss 0 without gradient, and is marked, so that
    the caller can leave it out of the average or refuse it.

    Args:
        log_probs: (T, B, C).
        lengths: (B,) frames of each line.
        targets: (B, L).
        target_lengths: (B,).

    Returns:
        (B,) losses in nats, each of a whole line, and (B,) bool, True where a loss exists.
    """
    alignable = frames_needed(targets, target_lengths) <= lengths.to(targets.device)
    losses = functional.ctc_loss(
        log_probs,
        targets,
        lengths,
        target_lengths,
        blank=BLANK,
        reduction="none",
        zero_infinity=True,
    )
    return losses.where(alignable, losses.new_zeros(())), alignable
