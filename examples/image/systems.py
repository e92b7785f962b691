"""The systems that the demo and the studies compare, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning.pytorch.strategies import Strategy

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

    def strategy(self) -> Strategy:
        """What to pass to the Trainer."""
        if self.rules is None:
            return HierarchicalStrategy(group_size="world")
        return PSPStrategy(**self.rules)


SYSTEMS: dict[str, System] = {
    "all_reduce": System(title="synchronous SGD"),
    "all": System(title="PSP-SGD, c = all", rules={}),
    "three_quarters": System(title="PSP-SGD, c = 3/4", rules={"min_pushes": 0.75}),
    "three_quarters_and_pull": System(
        title="PSP-SGD, c = 3/4, b = 3/4", rules={"min_pushes": 0.75, "min_pulled": 0.75}
    ),
}
