"""Waits of PSP-SGD for replies that come late, by the binomial distribution."""

from __future__ import annotations

from math import comb


def late_wait_s(
    ranks: int, *, min_pushes: int, min_pulled: int, late_share: float, late_s: float
) -> float:
    """Mean seconds of a step: P(more workers are late than a server can spare) times the delay.

    A worker is late if more of its replies are late than it can spare.

    Args:
        ranks: N, workers and blocks.
        min_pushes: c, workers whose gradients a server needs.
        min_pulled: blocks that a worker needs.
        late_share: share of the replies that come late.
        late_s: by how much.

    """
    worker_late = _more_than(ranks - min_pulled, ranks, late_share)
    return _more_than(ranks - min_pushes, ranks, worker_late) * late_s


def _more_than(spare: int, number: int, chance: float) -> float:
    """P(X > spare)."""
    return sum(
        comb(number, k) * chance**k * (1 - chance) ** (number - k)
        for k in range(spare + 1, number + 1)
    )
