"""Settings of PSP-SGD: partial pushing, partial pulling, and the terms of all servers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_hier.algorithms.arguments import check_not_negative, check_share, is_number


class QuorumError(RuntimeError):
    """Fewer workers are left than the gradients that every server needs."""


@dataclass
class Countdown:
    """When a wait for the messages of several ranks is over, by c and tau_1, or b and tau_2.

    Attributes:
        since: time at which there were enough; None: there are not.

    """

    since: float | None = None

    def is_over(self, *, complete: bool, enough: bool, timeout_s: float, now: float) -> bool:
        """Whether all messages have come, or enough and no others in ``timeout_s`` seconds."""
        if not enough:
            self.since = None
        elif self.since is None:
            self.since = now
        return complete or (self.since is not None and now >= self.since + timeout_s)


@dataclass(frozen=True)
class PushRule:
    """When a server updates its shard (Algorithm 1, server, line 12).

    Attributes:
        min_pushes: c: ``"all"``, a number of workers, or a fraction of them, rounded up.
        timeout_s: tau_1, seconds for which a server waits for more gradients once it has c.

    """

    min_pushes: Literal["all"] | int | float = "all"
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one of them is out of its range.

        """
        c = self.min_pushes
        whole = is_number(c) and isinstance(c, int) and c >= 1
        fraction = isinstance(c, float) and 0.0 < c <= 1.0
        if not (whole or fraction or c == "all"):
            raise ValueError(
                f'min_pushes must be "all", a number of workers (1, 2, ...) or a fraction of them '
                f"(above 0.0, at most 1.0), got {c!r}"
            )
        check_not_negative("push_timeout_s", self.timeout_s)

    def objection(self, workers: int) -> str | None:
        """Why the rule does not fit so many workers; None if it does."""
        if isinstance(self.min_pushes, int) and self.min_pushes > workers:
            return (
                f"min_pushes is {self.min_pushes}, but there are only {workers} workers: set it to "
                f"at most {workers}, to a fraction such as 0.75, or to 'all'"
            )
        return None

    def needed(self, workers: int) -> int:
        """c, of so many workers."""
        if self.min_pushes == "all":
            return workers
        if isinstance(self.min_pushes, float):
            return rounded_up(self.min_pushes, workers)
        return int(self.min_pushes)

    def check_quorum(self, workers: int, lost: Mapping[int, str]) -> None:
        """Check that servers can still get the gradients that they need.

        Args:
            workers: number of ranks at the start.
            lost: ranks that are lost, and why.

        Raises:
            QuorumError: they can't; names the lost ranks.

        """
        left, needed = workers - len(lost), self.needed(workers)
        if lost and left < needed:
            why = "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(lost.items()))
            raise QuorumError(
                f"min_pushes={self.min_pushes!r} needs {needed} of {workers} workers, and "
                f"{left} are left ({why}). To go on without workers that die, set min_pushes to "
                "the workers that may be left, as a number or a fraction of all, and "
                "push_timeout_s to some seconds, for which servers then wait for the others"
            )


@dataclass(frozen=True)
class PullRule:
    """When a worker computes its next gradient (Algorithm 1, worker, line 15).

    Attributes:
        min_pulled: b, fraction of the shards. Shards without parameters don't count.
        timeout_s: tau_2, seconds for which a worker waits for more shards once it has enough.

    """

    min_pulled: float = 1.0
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one of them is out of its range.

        """
        check_share("min_pulled", self.min_pulled)
        check_not_negative("pull_timeout_s", self.timeout_s)

    def needed(self, shards: int) -> int:
        """Number of shards that a worker needs."""
        return rounded_up(self.min_pulled, shards)


@dataclass(frozen=True, kw_only=True)
class PSPSettings:
    """Settings of all servers of a run.

    Attributes:
        rule: c and tau_1.
        world_size: number of ranks at the start, which c refers to.
        linear_scaling: whether the learning rate is multiplied by the number of gradients.
        warmup_steps: first steps of every optimizer that average the gradients of all workers, at
            the unscaled learning rate.
        steps_made: steps of each optimizer before this run, if it resumes another one.
        limit_s: seconds after which waiting workers get the names of the missing ones.
        takeover_s: seconds for which the successor of a server waits for the workers' copies.

    """

    rule: PushRule
    world_size: int
    linear_scaling: bool = True
    warmup_steps: int = 0
    steps_made: tuple[int, ...] = ()
    limit_s: float = 1800.0
    takeover_s: float = 30.0

    def warming(self, optimizer: int, version: int) -> bool:
        """Whether the step of an optimizer from a version belongs to the warm-up."""
        made = self.steps_made[optimizer] if self.steps_made else 0
        return made + version < self.warmup_steps


def rounded_up(fraction: float, whole: int) -> int:
    """``fraction * whole``, rounded up; 0.1 of 30 are 3, whatever 0.1 is in binary."""
    return math.ceil(round(fraction * whole, 9))
