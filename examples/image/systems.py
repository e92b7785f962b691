"""Systems that the demo and the studies compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning.pytorch.strategies import Strategy

from lightning_hier import HierarchicalStrategy, PSPStrategy


@dataclass(frozen=True, kw_only=True)
class System:
    """A strategy and its learning rate.

    Attributes:
        title: name in tables and plots.
        psp_args: arguments of ``PSPStrategy``. None: synchronous SGD by all-reduce.
    """

    title: str
    psp_args: dict[str, Any] | None = None

    def learning_rate(self, of_one_gradient: float, ranks: int) -> float:
        """Return the learning rate of the optimizer that makes the steps of all systems equal.

        PSP-SGD multiplies the learning rate by the number of gradients of an update. All-reduce
        averages the gradients.
        """
        return of_one_gradient * ranks if self.psp_args is None else of_one_gradient

    def strategy(self) -> Strategy:
        """Return the strategy for the Trainer."""
        if self.psp_args is None:
            return HierarchicalStrategy(group_size="world")
        return PSPStrategy(**self.psp_args)


SYSTEMS: dict[str, System] = {
    "all_reduce": System(title="synchronous SGD"),
    "all": System(title="PSP-SGD, c = all", psp_args={}),
    "three_quarters": System(title="PSP-SGD, c = 3/4", psp_args={"min_pushes": 0.75}),
    "three_quarters_and_pull": System(
        title="PSP-SGD, c = 3/4, b = 3/4", psp_args={"min_pushes": 0.75, "min_pulled": 0.75}
    ),
}
