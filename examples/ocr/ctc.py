"""CTC loss of text lines."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from examples.ocr.alphabet import BLANK
from examples.ocr.line import frames_needed


def ctc_losses(
    log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the CTC loss of each line.

    A line whose text needs more frames than the line has cannot be aligned. Its loss would be
    infinite and its gradient NaN. Such a line gets loss 0 and gradient 0. The second result marks
    it, so that the caller can exclude it from the mean or raise an error.

    Args:
        log_probs: log probabilities (T, B, C).
        lengths: (B,) number of frames of each line.
        targets: (B, L) indices of characters.
        target_lengths: (B,) number of characters of each line.

    Returns:
        Losses (B,) in nats, each summed over a line; and (B,) bool, True for lines that can be
        aligned.
    """
    needed = torch.tensor(frames_needed_in_batch(targets, target_lengths), device=lengths.device)
    alignable = needed <= lengths
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


def frames_needed_in_batch(targets: Tensor, target_lengths: Tensor) -> list[int]:
    """Return the number of frames that CTC needs for each line of targets (B, L)."""
    return [
        frames_needed(target[:length])
        for target, length in zip(targets.tolist(), target_lengths.tolist(), strict=True)
    ]
