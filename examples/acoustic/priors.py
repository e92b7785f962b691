"""Senone priors and scaled likelihoods of a hybrid HMM."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def log_priors(targets: Iterable[Tensor], senones: int) -> Tensor:
    """Return the log relative frequency of each senone in the aligned training frames.

    One is added to each count, so that all priors are finite.

    Args:
        targets: senones of frames. Negative values (padding) are ignored.
        senones: number of senones, S.

    Returns:
        Tensor (S,) float32, whose exponentials sum to one.
    """
    counts = torch.ones(senones, dtype=torch.float64)
    for target in targets:
        counts += torch.bincount(target[target >= 0].cpu(), minlength=senones)
    return (counts / counts.sum()).log().float()


def scaled_likelihoods(logits: Tensor, log_prior: Tensor) -> Tensor:
    """Return log p(s|x) - log p(s), which is log p(x|s) up to a constant for each frame.

    Args:
        logits: (..., S) logits or log posteriors.
        log_prior: (S,) log priors of :func:`log_priors`.
    """
    return logits.log_softmax(dim=-1) - log_prior.to(logits)
