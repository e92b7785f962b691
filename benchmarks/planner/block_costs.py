"""Speedup N e / (1 + s / tau): efficiency e and cost s of a synchronisation, fitted to runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SpeedupReading:
    """One run.

    Attributes:
        ranks: N.
        block_size: tau.
        speedup: over one rank alone.

    """

    ranks: int
    block_size: int
    speedup: float


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """The two parameters.

    Attributes:
        efficiency: e.
        synchronisation_steps: s, a synchronisation in steps.

    """

    efficiency: float
    synchronisation_steps: float

    def speedup(self, ranks: int, block_size: int) -> float:
        """N e / (1 + s / tau)."""
        return ranks * self.efficiency / (1 + self.synchronisation_steps / block_size)


def fit_block_costs(readings: Sequence[SpeedupReading]) -> BlockCosts:
    """Least squares of relative deviations: N / speedup = 1 / e + (s / e) / tau.

    Raises:
        ValueError: fewer than two block sizes, or readings that no such parameters explain.

    """
    if len({own.block_size for own in readings}) < 2:
        raise ValueError("two parameters need readings of at least two block sizes")
    # Each equation divided by its left side: the deviations are relative then.
    rows = [(own.speedup / own.ranks, own.speedup / own.ranks / own.block_size) for own in readings]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    inverse = (a * bb - b * ab) / determinant
    slope = (b * aa - a * ab) / determinant
    if inverse <= 0 or slope < 0:
        raise ValueError(
            f"speedups that do not grow with the block size have no such parameters: 1/e would be "
            f"{inverse:.3g} and s/e {slope:.3g}"
        )
    return BlockCosts(efficiency=1 / inverse, synchronisation_steps=slope / inverse)
