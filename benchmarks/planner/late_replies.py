"""Time that PSP-SGD waits for late replies, from the binomial distribution."""

from __future__ import annotations

from math import comb


def late_wait_s(
    ranks: int, *, min_pushes: int, min_pulled: int, late_share: float, late_s: float
) -> float:
    """Return the mean wait of a step: P(too many workers are late for a server) times the delay.

    A worker is late if fewer than ``min_pulled`` of its replies are on time.

    Args:
        ranks: number N of workers and of blocks.
        min_pushes: number c of workers whose gradients a server needs.
        min_pulled: number of blocks that a worker needs.
        late_share: fraction of the replies that are late.
        late_s: delay of a late reply in seconds.

    """
    worker_late = _more_than(ranks - min_pulled, ranks, late_share)
    return _more_than(ranks - min_pushes, ranks, worker_late) * late_s


def _more_than(spare: int, number: int, chance: float) -> float:
    """Return P(X > spare) of the binomial distribution."""
    return sum(
        comb(number, k) * chance**k * (1 - chance) ** (number - k)
        for k in range(spare + 1, number + 1)
    )
