"""Settings of the strategies with parameter servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from typing_extensions import Self

from lightning_hier.algorithms.arguments import (
    check_flag,
    check_not_negative,
    check_share,
    check_whole,
    is_number,
)


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

    def of_optimizers(self, number: int, steps_made: Sequence[int]) -> list[Self]:
        """The settings of each optimizer in a run that may resume another one.

        Args:
            number: number of optimizers.
            steps_made: steps of each before this run, or nothing if it resumes no other one.

        """
        # Servers and workers count steps from the start of this process.
        return [
            replace(self, warmup_steps=max(0, self.warmup_steps - made))
            for made in steps_made or [0] * number
        ]


@dataclass(frozen=True, kw_only=True)
class PSPSettings(ServerSettings):
    """Settings of one run of PSP-SGD, which are those of ``PSPStrategy``.

    ``min_pushes`` is c in line 12 of the server of Algorithm 1, and ``min_pulled`` is b in line 15
    of the worker, for which shards without parameters do not count.

    Raises:
        ValueError: a value is outside its range.

    """

    min_pushes: Literal["all"] | int | float = "all"
    min_pulled: float = 1.0
    push_timeout_s: float = 0.0
    pull_timeout_s: float = 0.0
    linear_scaling: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        # The type decides: 1 is one worker, and 1.0 is all of them.
        c = self.min_pushes
        whole = is_number(c) and isinstance(c, int) and c >= 1
        fraction = isinstance(c, float) and 0.0 < c <= 1.0
        if not (whole or fraction or c == "all"):
            raise ValueError(
                f'min_pushes must be "all", a number of workers (1, 2, ...) or a fraction of them '
                f"(above 0.0, at most 1.0), got {c!r}"
            )
        check_share("min_pulled", self.min_pulled)
        check_not_negative("push_timeout_s", self.push_timeout_s)
        check_not_negative("pull_timeout_s", self.pull_timeout_s)
        check_flag("linear_scaling", self.linear_scaling)

    def check_workers(self, workers: int) -> None:
        """Check that there can be as many gradients as servers need.

        Raises:
            ValueError: ``min_pushes`` is larger than the number of workers.

        """
        if isinstance(self.min_pushes, int) and self.min_pushes > workers:
            raise ValueError(
                f"min_pushes must be at most the number of workers, {workers}, got "
                f"{self.min_pushes}: set a smaller number, a fraction such as 0.75, or 'all'"
            )

    def needed_pushes(self, workers: int) -> int:
        """c for this number of workers."""
        if self.min_pushes == "all":
            return workers
        if isinstance(self.min_pushes, float):
            return rounded_up(self.min_pushes, workers)
        return int(self.min_pushes)

    def needed_shards(self, shards: int) -> int:
        """Number of shards that a worker needs."""
        return rounded_up(self.min_pulled, shards)

    def warming(self, version: int) -> bool:
        """Whether the step from this version is part of the warm-up."""
        return version < self.warmup_steps


def rounded_up(fraction: float, whole: int) -> int:
    """``fraction * whole``, rounded up. 0.1 of 30 is 3, despite the binary form of 0.1."""
    return math.ceil(round(fraction * whole, 9))


@dataclass(frozen=True, kw_only=True)
class TwoStageSettings(ServerSettings):
    """Settings of one run of two-stage ASGD, which are those of ``TwoStageASGDStrategy``.

    ``refresh_period`` is N_c in the paper, there in samples. A device also copies a replica with a
    new answer of the master.

    Raises:
        ValueError: a value is outside its range.

    """

    push_period: int = 4
    order_locking: bool = True
    double_buffering: bool = True
    hierarchical_lr: bool = True
    refresh_period: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("push_period", "refresh_period"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("order_locking", "double_buffering", "hierarchical_lr"):
            check_flag(name, getattr(self, name))
