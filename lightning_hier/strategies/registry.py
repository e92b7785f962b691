"""The names by which a Trainer finds the strategies."""

from __future__ import annotations

from lightning.pytorch.strategies import StrategyRegistry

from lightning_hier.strategies.hierarchical import HierarchicalStrategy
from lightning_hier.strategies.presets import (
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    GTCStrategy,
    ModelAveragingStrategy,
)

PRESETS: tuple[type[HierarchicalStrategy], ...] = (
    GTCStrategy,
    ModelAveragingStrategy,
    BMUFStrategy,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
)


def register() -> None:
    """Make ``Trainer(strategy="bmuf_gtc")`` and the other names work; again does nothing."""
    for preset in PRESETS:
        name = preset.strategy_name
        if name not in StrategyRegistry:
            summary = (preset.__doc__ or "").split("\n", 1)[0]
            StrategyRegistry.register(name, preset, description=summary)
