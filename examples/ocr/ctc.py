"""The CTC loss of text lines, and what of a batch it can be computed for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from examples.ocr.alphabet import BLANK
from examples.ocr.line import frames_needed


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
    needed = torch.tensor(frames_of_batch(targets, target_lengths), device=lengths.device)
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


def frames_of_batch(targets: Tensor, target_lengths: Tensor) -> list[int]:
    """Count the frames that CTC needs at least for each line of (B, L) targets."""
    return [
        frames_needed(target[:length])
        for target, length in zip(targets.tolist(), target_lengths.tolist(), strict=True)
    ]
