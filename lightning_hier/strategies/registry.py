"""Names of the strategies, for the Trainer and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

from lightning.pytorch.strategies import StrategyRegistry

from lightning_hier.strategies.hierarchical import HierarchicalStrategy
from lightning_hier.strategies.model_parallel import HierarchicalModelParallelStrategy
from lightning_hier.strategies.presets import (
    BMUFAdamFSDPStrategy,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    DiLoCoFSDPStrategy,
    DiLoCoStrategy,
    GTCStrategy,
    ModelAveragingStrategy,
)
from lightning_hier.strategies.server_presets import PSPStrategy, TwoStageASGDStrategy
from lightning_hier.strategies.server_strategy import ParameterServerStrategy

Preset = (
    type[HierarchicalStrategy]
    | type[HierarchicalModelParallelStrategy]
    | type[ParameterServerStrategy]
)

PRESETS: dict[str, Preset] = {
    preset.strategy_name: preset
    for preset in (
        GTCStrategy,
        ModelAveragingStrategy,
        BMUFStrategy,
        BMUFAdamStrategy,
        BMUFGTCStrategy,
        DiLoCoStrategy,
        BMUFAdamFSDPStrategy,
        DiLoCoFSDPStrategy,
        TwoStageASGDStrategy,
        PSPStrategy,
    )
}


def summary(preset: type) -> str:
    """One line about a strategy: the first line of its docstring."""
    return (preset.__doc__ or "").split("\n", 1)[0]


def class_path_of(name: str) -> str | None:
    """Path of the class of a preset, by its name in any case. None for other names."""
    preset = PRESETS.get(name.lower())
    return None if preset is None else f"lightning_hier.{preset.__name__}"


def register() -> None:
    """Register the names, such as ``Trainer(strategy="bmuf_gtc")``. May be called again."""
    register_in(StrategyRegistry, PRESETS.values())


def register_in(registry: Any, presets: Iterable[Any]) -> None:
    """Register the names of ``presets`` in a registry of Lightning. May be called again.

    Each also exists with the ending ``_find_unused_parameters_true``, which has no effect where DDP
    does not wrap the module.
    """
    for preset in presets:
        takes_it = "ddp_kwargs" in signature(preset).parameters
        unused = {"find_unused_parameters": True} if takes_it else {}
        for ending, settings in (("", {}), ("_find_unused_parameters_true", unused)):
            name = preset.strategy_name + ending
            if name not in registry:
                registry.register(name, preset, description=summary(preset), **settings)
