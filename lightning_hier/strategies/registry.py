"""The names by which a Trainer, and the command line, find the strategies."""

from __future__ import annotations

from lightning.pytorch.strategies import StrategyRegistry

from lightning_hier.strategies.hierarchical import HierarchicalStrategy
from lightning_hier.strategies.lookup import explain_mistakes
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

Preset = type[HierarchicalStrategy] | type[ParameterServerStrategy]

PRESETS: dict[str, Preset] = {
    preset.strategy_name: preset
    for preset in (
        GTCStrategy,
        ModelAveragingStrategy,
        BMUFStrategy,
        BMUFAdamStrategy,
        BMUFGTCStrategy,
        TwoStageASGDStrategy,
        PSPStrategy,
    )
}


def summary(preset: Preset) -> str:
    """A line about a strategy: the first of its docstring."""
    return (preset.__doc__ or "").split("\n", 1)[0]


def register() -> None:
    """Make ``Trainer(strategy="bmuf_gtc")`` and the other names work; again does nothing."""
    for name, preset in PRESETS.items():
        if name not in StrategyRegistry:
            StrategyRegistry.register(name, preset, description=summary(preset))
    explain_mistakes(PRESETS)
