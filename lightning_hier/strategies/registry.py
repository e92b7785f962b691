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
from lightning_hier.strategies.psp import PSPStrategy
from lightning_hier.strategies.server_strategy import ParameterServerStrategy
from lightning_hier.strategies.two_stage_asgd import TwoStageASGDStrategy

PRESETS: tuple[type[HierarchicalStrategy | ParameterServerStrategy], ...] = (
    GTCStrategy,
    ModelAveragingStrategy,
    BMUFStrategy,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    TwoStageASGDStrategy,
    PSPStrategy,
)


def register() -> None:
    """Make ``Trainer(strategy="bmuf_gtc")`` and the other names work; again does nothing."""
    for preset in PRESETS:
        name = preset.strategy_name
        if name not in StrategyRegistry:
            summary = (preset.__doc__ or "").split("\n", 1)[0]
            StrategyRegistry.register(name, preset, description=summary)
