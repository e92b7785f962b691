"""Settings that all strategies with parameter servers have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of one run; all ranks must have the same.

    Attributes:
        warmup_steps: number of first steps of every optimizer that all ranks make together, with
            the mean of all gradients.
        timeout_s: time limit of every wait, in seconds.

    """

    warmup_steps: int = 0
    timeout_s: float = 1800.0

    def after(self, steps_made: int) -> Self:
        """The settings for the rest of a run that is resumed after so many steps."""
        # Servers and workers count steps from the start of this process.
        return replace(self, warmup_steps=max(0, self.warmup_steps - steps_made))

    def of_optimizers(self, number: int, steps_made: Sequence[int]) -> list[Self]:
        """The settings of each optimizer, which may have different warm-ups left.

        Args:
            number: number of optimizers.
            steps_made: steps of each before this run, or nothing if it resumes no other one.

        """
        return [self.after(made) for made in steps_made or [0] * number]
