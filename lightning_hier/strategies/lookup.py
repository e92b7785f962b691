"""What a Trainer finds wrong with ``strategy=...`` before it takes it."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from lightning.pytorch.strategies import StrategyRegistry

from lightning_hier.algorithms.arguments import did_you_mean
from lightning_hier.strategies.placement import PlacedStrategy


def explain_mistakes(names: Collection[str]) -> None:
    """Have a Trainer raise an error of ours for what is almost one of our strategies.

    Lightning has a fixed text for every name that is not registered, and one about the accelerator
    for a strategy object that another Trainer has. A Trainer looks its argument up in the list of
    registered names before anything else: this replaces the list of the registry, a public object,
    instead of a method of the Trainer. All that Lightning knows goes its own way.

    Args:
        names: of our strategies.

    """

    def available_strategies() -> list[str]:
        return _Names(StrategyRegistry, names)

    StrategyRegistry.available_strategies = available_strategies  # type: ignore[method-assign]


class _Names(list[str]):
    """Registered names. Looking up what is nearest to one of ours is an error with that name."""

    def __init__(self, registered: Collection[str], own: Collection[str]) -> None:
        super().__init__(registered)
        self._own = own

    def __contains__(self, given: object) -> bool:
        if isinstance(given, PlacedStrategy):
            _require_new(given)
        found = super().__contains__(given)
        if not found and isinstance(given, str):
            nearest = get_close_matches(given, self, 1)
            if nearest and nearest[0] in self._own:
                raise ValueError(
                    f"no strategy has the name {given!r}{did_you_mean(given, self)} lightning_hier "
                    f"has {', '.join(self._own)}"
                )
        return found


def _require_new(strategy: PlacedStrategy) -> None:
    if strategy.has_trainer:
        raise ValueError(
            f"this {type(strategy).__name__} belongs to another Trainer already: a strategy serves "
            "one Trainer. Make a new one for each"
        )
