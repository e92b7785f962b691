"""Schedules of the learning rate: warm-up, then a cosine, or a constant and a linear decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["cosine", "constant"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate at each step, relative to its peak.

    Attributes:
        kind: ``"cosine"`` falls from 1 to ``final_share`` along half a cosine. ``"constant"`` stays
            at 1 and falls linearly to ``final_share`` over the last ``decay_share`` of the steps.
        warmup_share: fraction of the steps over which the learning rate rises linearly to its peak.
        decay_share: see ``kind``.
        final_share: see ``kind``.

    Raises:
        ValueError: the kind is unknown, or a fraction is out of range.

    """

    kind: ScheduleName = "cosine"
    warmup_share: float = 0.05
    decay_share: float = 0.2
    final_share: float = 0.1

    def __post_init__(self) -> None:
        """Check the values."""
        if self.kind not in ("cosine", "constant"):
            raise ValueError(f"schedule must be 'cosine' or 'constant', got {self.kind!r}")
        for name in ("warmup_share", "decay_share", "final_share"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {value}")
        if self.kind == "constant" and self.warmup_share + self.decay_share > 1:
            raise ValueError(
                "warmup_share and decay_share must not exceed 1 together, got "
                f"{self.warmup_share} and {self.decay_share}"
            )

    def factor(self, step: int, steps: int) -> float:
        """Return the factor at a step of a run.

        Args:
            step: step, counted from 0. After the end of the run, the factor is ``final_share``.
            steps: number of steps of the run.

        """
        warmup = round(self.warmup_share * steps)
        if step < warmup:
            return (step + 1) / warmup
        if self.kind == "cosine":
            done = min(1.0, (step - warmup) / max(1, steps - warmup))
            return self.final_share + (1 - self.final_share) * (1 + math.cos(math.pi * done)) / 2
        decay = max(1, round(self.decay_share * steps))
        left = min(1.0, max(0.0, (steps - step) / decay))
        return self.final_share + (1 - self.final_share) * left
