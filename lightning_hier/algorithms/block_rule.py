"""The length of blocks by the learning rate: the quadratic synchronisation rule (QSR)."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from lightning_hier.algorithms.arguments import (
    NamedArguments,
    check_not_negative,
    check_positive,
    check_whole,
)

# Largest relative error of the square of a quotient of two decimal numbers.
_ROUNDING = 8.0 * sys.float_info.epsilon


@dataclass(frozen=True, kw_only=True)
class QSR(NamedArguments):
    """Blocks grow as the learning rate falls: quadratic synchronisation rule (qsr).

    With H_base, the ``block_size`` of the synchronisation, and the learning rate eta at the start
    of a block::

        H = max(H_base, floor((coefficient / eta)^2))        at most max_block_size

    A rate of ``coefficient / sqrt(H_base)`` is the one at which blocks begin to grow.

    Attributes:
        coefficient: alpha of the paper, above 0, in units of the learning rate.
        max_block_size: the longest block in steps. The equation has no limit as eta goes to 0.

    Raises:
        ValueError: a value is outside its range.

    """

    coefficient: float
    max_block_size: int

    def __post_init__(self) -> None:
        """Check the values."""
        check_positive("coefficient", self.coefficient)
        check_whole("max_block_size", self.max_block_size)

    def check_least(self, least: int) -> None:
        """Raise ValueError if ``max_block_size`` is below ``least``, the base length of a block."""
        if self.max_block_size < least:
            raise ValueError(
                f"max_block_size must be at least block_size, got max_block_size="
                f"{self.max_block_size} and block_size={least}"
            )

    def block_size(self, learning_rate: float, least: int) -> int:
        """Steps of the block that starts with this learning rate.

        A pure function of its arguments, in float64, so ranks with the same learning rate get the
        same length.

        Args:
            learning_rate: eta, at least 0.
            least: H_base, the shortest block.

        Raises:
            ValueError: the learning rate is negative or not finite, or ``max_block_size`` is below
                ``least``.

        """
        self.check_least(least)
        check_not_negative("learning_rate", learning_rate)
        # Schedules may end at a rate of 0.
        ratio = self.coefficient / learning_rate if learning_rate > 0.0 else math.inf
        # 0.3 / 0.1 is a little below 3 in float64, but its square means 9 steps, not 8.
        steps = ratio * ratio * (1.0 + _ROUNDING)
        if steps >= self.max_block_size:  # also infinity, which has no floor
            return self.max_block_size
        return max(least, math.floor(steps))
