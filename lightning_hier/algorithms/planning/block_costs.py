"""Efficiency and cost of a synchronisation, out of speedups that somebody has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_hier.algorithms.arguments import check_positive, check_whole
from lightning_hier.algorithms.planning.steps import block_speedup


@dataclass(frozen=True, kw_only=True)
class SpeedupReading:
    """One run.

    Attributes:
        ranks: N.
        block_size: tau.
        speedup: against one rank by itself.

    Raises:
        ValueError: a value outside its range.

    """

    ranks: int
    block_size: int
    speedup: float

    def __post_init__(self) -> None:
        """Check the values."""
        check_whole("ranks", self.ranks)
        check_whole("block_size", self.block_size)
        check_positive("speedup", self.speedup)


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """The two parameters of speedup = N e / (1 + s / tau).

    Attributes:
        efficiency: e.
        synchronisation_steps: s, a synchronisation in steps.

    """

    efficiency: float
    synchronisation_steps: float

    def speedup(self, ranks: int, block_size: int) -> float:
        """Of so many ranks in blocks of such a size."""
        return block_speedup(
            ranks,
            efficiency=self.efficiency,
            synchronisation_steps=self.synchronisation_steps,
            block_size=block_size,
        )


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
