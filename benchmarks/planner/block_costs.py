"""Speedup N e / (1 + s / tau): efficiency e and cost s of a synchronisation, fitted to runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SpeedupReading:
    """Measured speedup of a run.

    Attributes:
        ranks: number of ranks N.
        block_size: block size tau.
        speedup: speedup over one rank.

    """

    ranks: int
    block_size: int
    speedup: float


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """The two fitted parameters.

    Attributes:
        efficiency: efficiency e.
        synchronisation_steps: cost s of a synchronisation in steps.

    """

    efficiency: float
    synchronisation_steps: float

    def speedup(self, ranks: int, block_size: int) -> float:
        """Return N e / (1 + s / tau)."""
        return ranks * self.efficiency / (1 + self.synchronisation_steps / block_size)


def fit_block_costs(readings: Sequence[SpeedupReading]) -> BlockCosts:
    """Fit N / speedup = 1 / e + (s / e) / tau by least squares of relative deviations.

    Raises:
        ValueError: fewer than two block sizes, or no valid parameters fit the readings.

    """
    if len({reading.block_size for reading in readings}) < 2:
        raise ValueError("readings of at least two block sizes are needed to fit two parameters")
    # Divide each equation by its left side, so that the deviations are relative.
    rows = [
        (reading.speedup / reading.ranks, reading.speedup / reading.ranks / reading.block_size)
        for reading in readings
    ]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    inverse = (a * bb - b * ab) / determinant
    slope = (b * aa - a * ab) / determinant
    if inverse <= 0 or slope < 0:
        raise ValueError(
            f"the speedup must grow with the block size: the fit has 1/e = {inverse:.3g} and "
            f"s/e = {slope:.3g}"
        )
    return BlockCosts(efficiency=1 / inverse, synchronisation_steps=slope / inverse)
