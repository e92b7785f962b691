"""What a Trainer finds wrong with ``strategy=...`` before it takes it."""

from __future__ import annotations

from collections.abc import Collection
from inspect import currentframe

from lightning.pytorch.strategies import StrategyRegistry

from lightning_hier.algorithms.arguments import did_you_mean
from lightning_hier.strategies.tiered import TieredStrategy


def explain_mistakes(names: Collection[str]) -> None:
    """Have a Trainer raise an error that lists all strategies for a name that nobody registered.

    Lightning has a fixed text for every name that is not registered, which lists a few of its own,
    and one about the accelerator for a strategy object that another Trainer has. A Trainer looks
    its argument up in the list of registered names before anything else: this replaces the list of
    the registry, a public object, instead of a method of the Trainer. What is registered goes its
    own way, and whoever else asks for the list may look for any name in it.

    Args:
        names: of our strategies.

    """

    def available_strategies() -> list[str]:
        frame = currentframe()
        caller = frame.f_back.f_globals.get("__name__", "") if frame and frame.f_back else ""
        if caller.startswith("lightning.pytorch."):
            return _Names(StrategyRegistry, names)
        return list(StrategyRegistry)

    StrategyRegistry.available_strategies = available_strategies  # type: ignore[method-assign]


class _Names(list[str]):
    """Registered names. Looking up any other is an error with the nearest, and with all."""

    def __init__(self, registered: Collection[str], own: Collection[str]) -> None:
        super().__init__(registered)
        self._own = own

    def __contains__(self, given: object) -> bool:
        if isinstance(given, TieredStrategy):
            _require_new(given)
        found = super().__contains__(given)
        if not found and isinstance(given, str):
            others = sorted({"auto", *self} - set(self._own))
            raise ValueError(
                f"no strategy has the name {given!r}{did_you_mean(given, [*self._own, *others])} "
                f"lightning_hier has {', '.join(self._own)}, and HierarchicalStrategy(...) for "
                f"other combinations; Lightning and other packages have {', '.join(others)}"
            )
        return found


def _require_new(strategy: TieredStrategy) -> None:
    if strategy.has_trainer:
        raise ValueError(
            f"this {type(strategy).__name__} belongs to another Trainer already: a strategy serves "
            "one Trainer. Make a new one for each"
        )
