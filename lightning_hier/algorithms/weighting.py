"""The weights of groups in a mean of models, by the samples of their blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence


def sample_weights(samples: Sequence[float]) -> tuple[list[float], float]:
    """Weight of each group in the mean of the models, and the effective number of groups.

    With n_k samples in the block of group k::

        p_k   = n_k / sum(n)                       mean = sum over k of p_k * w_k
        N_eff = sum(n)^2 / sum(n^2)                = 1 / sum(p^2), N for equal n_k

    ``N_eff`` stands for the number of averaged models in the equations of block momentum
    (docs/algorithms.md, weighting).

    Args:
        samples: n_k of each group, at least 0. A group without samples has no weight.

    Returns:
        p_k of each group, and N_eff, from 1 to the number of groups.

    Raises:
        ValueError: a number is negative or not finite, or no group has samples.

    """
    if not all(math.isfinite(own) and own >= 0 for own in samples) or not any(samples):
        raise ValueError(
            "samples must be finite numbers of at least 0, with at least one above 0, got "
            f"{list(samples)}"
        )
    # Relative to the largest, so that neither sums nor squares overflow.
    largest = max(samples)
    relative = [own / largest for own in samples]
    total = math.fsum(relative)
    squares = math.fsum(own * own for own in relative)
    return [own / total for own in relative], total * total / squares
