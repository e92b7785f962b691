"""When a worker has blocks enough: partial pulling with b and tau_2 (psp_sgd, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.algorithms.arguments import check_not_negative, check_share
from lightning_hier.parameter_server.psp.push_rule import rounded_up


@dataclass(frozen=True)
class PullRule:
    """What a worker waits for before it computes its next gradient (Algorithm 1, worker, line 15).

    Attributes:
        min_pulled: b, fraction of the blocks. Blocks without parameters don't count.
        timeout_s: tau_2, seconds that a worker goes on waiting once so many blocks are there.

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

    def needed(self, blocks: int) -> int:
        """How many of so many blocks must have come."""
        return rounded_up(self.min_pulled, blocks)

    def is_over(
        self, *, pulled: int, needed: int, blocks: int, enough_since: float | None, now: float
    ) -> bool:
        """Whether a worker goes on now.

        Args:
            pulled: blocks that are new since the last push.
            needed: how many it must be.
            blocks: all blocks.
            enough_since: since when as many as needed have been there, in seconds.
            now: the time, in seconds.

        """
        if pulled == blocks:
            return True
        waited = enough_since is not None and now >= enough_since + self.timeout_s
        return pulled >= needed and waited
