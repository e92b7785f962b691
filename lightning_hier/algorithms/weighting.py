"""The weights of groups in a mean of models, by the samples of their blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupWeight:
    """Weight of a group in a mean.

    Attributes:
        weight: p_k.
        effective: N_eff, which is the same for all groups.

    """

    weight: float
    effective: float


def group_weights(samples: Sequence[float]) -> list[GroupWeight]:
    """Weight of each group by its samples, or equal weights if no group has samples.

    With n_k samples in the block of group k::

        p_k   = n_k / sum(n)                       mean = sum over k of p_k * w_k
        N_eff = sum(n)^2 / sum(n^2)                = 1 / sum(p^2), and N if all n_k are equal

    ``N_eff`` replaces the number of averaged models in the equations of block momentum
    (docs/algorithms.md, weighting by samples).

    Args:
        samples: n_k of each group, at least 0. A group without samples has no weight.

    Raises:
        ValueError: a number is negative or not finite.

    """
    if not all(math.isfinite(count) and count >= 0 for count in samples):
        raise ValueError(f"samples must be finite numbers of at least 0, got {list(samples)}")
    # Divided by the largest, so that neither sums nor squares overflow. Without samples, only
    # buffers can differ, as in an evaluation at the end of a block.
    largest = max(samples)
    relative = [count / largest if largest else 1.0 for count in samples]
    total = math.fsum(relative)
    effective = total * total / math.fsum(share * share for share in relative)
    # Rounded, they do not sum to exactly 1. Groups therefore average local updates: a mean of
    # models would shrink or grow them in every block (docs/algorithms.md, weighting by samples).
    return [GroupWeight(share / total, effective) for share in relative]


def weighted_block_momentum(effective: float, *, block_lr: float = 1.0, c: float = 1.0) -> float:
    """Block momentum of a mean of several groups that count by their samples.

    ``eta = 1 - block_lr / (c * N_eff)``, which is bmuf eq. 10 with N_eff models. It is 0 if one
    group has all samples, as with a single group: one model has no block momentum.

    Args:
        effective: N_eff, at least 1.
        block_lr: zeta, at most ``c``, so that eta is not negative.
        c: C, as in :func:`~lightning_hier.algorithms.block_momentum.auto_block_momentum`.

    """
    return 1.0 - block_lr / (c * effective) if effective > 1.0 else 0.0
