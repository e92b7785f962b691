"""Settings of PSP-SGD: partial pushing, partial pulling, and the end of their waits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lightning_hier.algorithms.arguments import (
    check_flag,
    check_not_negative,
    check_share,
    is_number,
)
from lightning_hier.parameter_server.server_settings import ServerSettings


@dataclass
class Countdown:
    """End of a wait for messages of several ranks, by c and tau_1, or b and tau_2.

    Attributes:
        since: time at which enough messages had arrived, or None.

    """

    since: float | None = None

    def is_over(self, *, complete: bool, enough: bool, timeout_s: float, now: float) -> bool:
        """Whether all messages have arrived, or enough of them ``timeout_s`` seconds ago."""
        # More may be needed than before: workers that return from a collective count again.
        if not enough:
            self.since = None
        elif self.since is None:
            self.since = now
        return complete or (self.since is not None and now >= self.since + timeout_s)


@dataclass(frozen=True, kw_only=True)
class PSPSettings(ServerSettings):
    """Settings of one run of PSP-SGD.

    Attributes:
        min_pushes: c, gradients that a server needs for an update (Algorithm 1, server, line 12):
            ``"all"``, a number of workers, or a fraction of the ranks at the start, rounded up.
        min_pulled: b, fraction of the shards that a worker needs for the next gradient (worker,
            line 15). Shards without parameters do not count.
        push_timeout_s: tau_1, seconds that a server waits for more gradients after c.
        pull_timeout_s: tau_2, seconds that a worker waits for more shards after b.
        linear_scaling: whether the learning rate is multiplied by the number of gradients.
        warmup_steps: number of first steps of every optimizer in which the gradients of all workers
            are averaged and the learning rate is not scaled.
        timeout_s: see :class:`ServerSettings`.

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
