"""Settings of PSP-SGD: partial pushing, partial pulling, and settings of all servers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_hier.algorithms.arguments import check_not_negative, check_share, is_number


class QuorumError(RuntimeError):
    """Fewer workers are left than gradients are needed by every server."""


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


@dataclass(frozen=True)
class PushRule:
    """Condition for an update of a shard (Algorithm 1, server, line 12).

    Attributes:
        min_pushes: c: ``"all"``, a number of workers, or a fraction of them, rounded up.
        timeout_s: tau_1, seconds that a server waits for more gradients after c.

    """

    min_pushes: Literal["all"] | int | float = "all"
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a value is outside its range.

        """
        # The type decides: 1 is one worker, and 1.0 is all of them.
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
        """Reason why the rule does not support this number of workers, or None."""
        if isinstance(self.min_pushes, int) and self.min_pushes > workers:
            return (
                f"min_pushes must be at most the number of workers, {workers}, got "
                f"{self.min_pushes}: set a smaller number, a fraction such as 0.75, or 'all'"
            )
        return None

    def needed(self, workers: int) -> int:
        """c for this number of workers."""
        if self.min_pushes == "all":
            return workers
        if isinstance(self.min_pushes, float):
            return rounded_up(self.min_pushes, workers)
        return int(self.min_pushes)

    def check_quorum(self, workers: int, lost: Mapping[int, str]) -> None:
        """Check that servers can still get the gradients that they need.

        Args:
            workers: number of ranks at the start.
            lost: lost ranks, with reasons.

        Raises:
            QuorumError: they cannot. The error names the lost ranks.

        """
        # Of the workers at the start: c does not shrink with the losses.
        left, needed = workers - len(lost), self.needed(workers)
        if lost and left < needed:
            why = "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(lost.items()))
            raise QuorumError(
                f"min_pushes={self.min_pushes!r} needs {needed} of {workers} workers, and "
                f"{left} are left ({why}). To continue without lost workers, set min_pushes to "
                "the number of workers that must be left, or to a fraction, and push_timeout_s to "
                "the seconds that servers then wait for the other workers"
            )


@dataclass(frozen=True)
class PullRule:
    """Condition for the next gradient of a worker (Algorithm 1, worker, line 15).

    Attributes:
        min_pulled: b, fraction of the shards. Shards without parameters do not count.
        timeout_s: tau_2, seconds that a worker waits for more shards after b.

    """

    min_pulled: float = 1.0
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a value is outside its range.

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
        world_size: number of ranks at the start, to which c refers.
        linear_scaling: whether the learning rate is multiplied by the number of gradients.
        warmup_steps: number of first steps of every optimizer in which the gradients of all workers
            are averaged and the learning rate is not scaled.
        steps_made: steps of each optimizer before this run, if it resumes another one.
        limit_s: seconds after which waiting workers get the list of missing ones.
        takeover_s: seconds that the successor of a server waits for the workers' copies.

    """

    rule: PushRule
    world_size: int
    linear_scaling: bool = True
    warmup_steps: int = 0
    steps_made: tuple[int, ...] = ()
    limit_s: float = 1800.0
    takeover_s: float = 30.0

    def warming(self, optimizer: int, version: int) -> bool:
        """Whether the step of an optimizer from this version is part of the warm-up."""
        # Versions count the updates of this run from 0.
        made = self.steps_made[optimizer] if self.steps_made else 0
        return made + version < self.warmup_steps


def rounded_up(fraction: float, whole: int) -> int:
    """``fraction * whole``, rounded up. 0.1 of 30 is 3, despite the binary form of 0.1."""
    return math.ceil(round(fraction * whole, 9))
