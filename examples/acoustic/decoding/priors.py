"""From the posteriors of a classifier to the scaled likelihoods of a hybrid HMM."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def log_priors(targets: Iterable[Tensor], senones: int, *, smoothing: float = 1.0) -> Tensor:
    """Return the log relative frequency of each senone in the aligned training frames.

    Args:
        targets: senones per frame; negative values (padding) are not counted.
        senones: number of senones S.
        smoothing: frames added to each count, so that an unseen senone has a finite prior.

    Returns:
        Tensor (S,) float32, whose exponentials sum to one.

    Raises:
        ValueError: no frame at all, or a senone that is not below S.
    """
    counts = torch.zeros(senones, dtype=torch.float64)
    for target in targets:
        kept = target[target >= 0].cpu()
        if kept.numel() and int(kept.max()) >= senones:
            raise ValueError(f"senones must be below {senones}, got {int(kept.max())}")
        counts += torch.bincount(kept, minlength=senones)
    if counts.sum() == 0:
        raise ValueError("priors need at least one aligned frame, got none")
    counts += smoothing
    return (counts / counts.sum()).log().float()


def scaled_likelihoods(logits: Tensor, log_prior: Tensor) -> Tensor:
    """Return log p(s|x) - log p(s), equal to log p(x|s) up to a constant of the frame.

    Args:
        logits: (..., S), outputs of the model before or after the softmax.
        log_prior: (S,), from ``log_priors``.
    """
    return logits.log_softmax(dim=-1) - log_prior.to(logits)
