"""Names of the strategies, for the Trainer and the command line."""

from __future__ import annotations

from collections.abc import Collection
from inspect import currentframe

from lightning.pytorch.strategies import StrategyRegistry

from lightning_hier.algorithms.foreign_names import did_you_mean
from lightning_hier.strategies.hierarchical import HierarchicalStrategy
from lightning_hier.strategies.presets import (
    BMUFAdamStrategy,
    BMUFStrategy,
    GTCStrategy,
    ModelAveragingStrategy,
)
from lightning_hier.strategies.psp import PSPStrategy
from lightning_hier.strategies.server_strategy import ParameterServerStrategy
from lightning_hier.strategies.tiered import TieredStrategy
from lightning_hier.strategies.two_stage_asgd import TwoStageASGDStrategy
from lightning_hier.strategies.two_tier_presets import BMUFGTCStrategy, DiLoCoStrategy

Preset = type[HierarchicalStrategy] | type[ParameterServerStrategy]

PRESETS: dict[str, Preset] = {
    preset.strategy_name: preset
    for preset in (
        GTCStrategy,
        ModelAveragingStrategy,
        BMUFStrategy,
        BMUFAdamStrategy,
        BMUFGTCStrategy,
        DiLoCoStrategy,
        TwoStageASGDStrategy,
        PSPStrategy,
    )
}


def summary(preset: Preset) -> str:
    """One line about a strategy: the first line of its docstring."""
    return (preset.__doc__ or "").split("\n", 1)[0]


def register() -> None:
    """Register the names, such as ``Trainer(strategy="bmuf_gtc")``. May be called again."""
    for name, preset in PRESETS.items():
        if name not in StrategyRegistry:
            StrategyRegistry.register(name, preset, description=summary(preset))
    explain_mistakes(PRESETS)


def explain_mistakes(names: Collection[str]) -> None:
    """Make a Trainer raise an error that lists all strategies for an unknown name.

    Lightning's error for an unknown name lists only some of its own names, and its error for the
    strategy of another Trainer is about the accelerator. A Trainer first searches the list of
    registered names. This function replaces the list of the registry, which is a public object.
    Registered names and other callers are not affected.

    Args:
        names: names of the strategies of this package.

    """

    def available_strategies() -> list[str]:
        frame = currentframe()
        caller = frame.f_back.f_globals.get("__name__", "") if frame and frame.f_back else ""
        if caller.startswith("lightning.pytorch."):
            return _Names(StrategyRegistry, names)
        return list(StrategyRegistry)

    StrategyRegistry.available_strategies = available_strategies  # type: ignore[method-assign]


class _Names(list[str]):
    """Registered names. An unknown name is an error that suggests similar names and lists all."""

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
            f"this {type(strategy).__name__} belongs to another Trainer already, but a strategy "
            "serves one Trainer. Create a new one for each"
        )
