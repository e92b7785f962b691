"""When a server has gradients enough: partial pushing with c and tau_1 (psp_sgd, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_hier.algorithms.arguments import check_not_negative, is_number


class QuorumError(RuntimeError):
    """Fewer workers are left than the gradients that every server needs."""


@dataclass(frozen=True)
class PushRule:
    """What a server waits for before it updates its block (Algorithm 1, server, line 12).

    Attributes:
        min_pushes: c: ``"all"``, a number of workers, or a fraction of them, rounded up.
        timeout_s: tau_1, seconds that a server goes on waiting once c gradients are there.

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
        """Why the rule can't be kept by so many workers; None if it can."""
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

    def is_over(
        self, *, gradients: int, needed: int, silent: int, enough_since: float | None, now: float
    ) -> bool:
        """Whether a server updates its block now.

        Args:
            gradients: workers whose gradient is there.
            needed: c, or less where so many can't come any more.
            silent: workers that have not responded and still may.
            enough_since: since when as many gradients as needed have been there, in seconds.
            now: the time, in seconds.

        """
        if silent == 0:
            return True
        waited = enough_since is not None and now >= enough_since + self.timeout_s
        return gradients >= needed and waited

    def check_quorum(self, workers: int, lost: Mapping[int, str]) -> None:
        """See that servers can still get the gradients they need.

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


def rounded_up(fraction: float, whole: int) -> int:
    """``fraction * whole``, rounded up; 0.1 of 30 are 3, whatever 0.1 is in binary."""
    return math.ceil(round(fraction * whole, 9))
