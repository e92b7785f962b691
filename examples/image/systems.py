"""The systems that the demo and the studies compare, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning.pytorch.strategies import Strategy

from examples.image.late_replies import LateRepliesPSPStrategy
from lightning_hier import HierarchicalStrategy, PSPStrategy


@dataclass(frozen=True, kw_only=True)
class System:
    """One way to train on several ranks.

    Attributes:
        title: for tables and plots.
        rules: arguments of ``PSPStrategy``; None: synchronous SGD by all-reduce.
    """

    title: str
    rules: dict[str, Any] | None = None

    def learning_rate(self, of_one_gradient: float, ranks: int) -> float:
        """What to give to the optimizer, so that all systems take steps of one size.

        PSP-SGD multiplies it by the number of gradients of an update, the all-reduce does not.
        """
        return of_one_gradient * ranks if self.rules is None else of_one_gradient

    def strategy(
        self, *, late_share: float = 0.0, late_seconds: float = 0.0, seed: int = 0
    ) -> Strategy:
        """What to pass to the Trainer.

        Args:
            late_share: of the replies of servers that are late.
            late_seconds: by which they are late.
            seed: decides which.

        Raises:
            ValueError: late replies of a system that has no servers.
        """
        if late_share == 0.0:
            rules = self.rules
            return (
                HierarchicalStrategy(group_size="world") if rules is None else PSPStrategy(**rules)
            )
        if self.rules is None:
            raise ValueError(f"{self.title} has no servers whose replies could be late")
        return LateRepliesPSPStrategy(
            late_share=late_share, late_seconds=late_seconds, late_seed=seed, **self.rules
        )


SYSTEMS: dict[str, System] = {
    "all_reduce": System(title="synchronous SGD"),
    # Fractions of the ranks and of the blocks, after Table 1 of psp_sgd: 28 and 20 of 32 gradients.
    "all": System(title="PSP-SGD, c = all", rules={}),
    "three_quarters": System(title="PSP-SGD, c = 3/4", rules={"min_pushes": 0.75}),
    "three_quarters_and_pull": System(
        title="PSP-SGD, c = 3/4, b = 3/4", rules={"min_pushes": 0.75, "min_pulled": 0.75}
    ),
    "most": System(title="PSP-SGD, c = 7/8", rules={"min_pushes": 0.875}),
    "most_and_pull": System(
        title="PSP-SGD, c = 7/8, b = 7/8", rules={"min_pushes": 0.875, "min_pulled": 0.875}
    ),
    "few": System(
        title="PSP-SGD, c = 5/8, b = 3/4", rules={"min_pushes": 0.625, "min_pulled": 0.75}
    ),
}
