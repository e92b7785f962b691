"""Tests the selection of a strategy by name, as an object, in YAML and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import StrategyRegistry

import lightning_hier as lh
from lightning_hier.strategies.registry import PRESETS
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit

NAMES = {
    "gtc": lh.GTCStrategy,
    "model_averaging": lh.ModelAveragingStrategy,
    "bmuf": lh.BMUFStrategy,
    "bmuf_adam": lh.BMUFAdamStrategy,
    "bmuf_gtc": lh.BMUFGTCStrategy,
    "diloco": lh.DiLoCoStrategy,
    "psp": lh.PSPStrategy,
    "two_stage_asgd": lh.TwoStageASGDStrategy,
}


@pytest.mark.parametrize("name", PRESETS)
def test_trainer_finds_the_name_in_any_case_and_for_unused_parameters(name: str) -> None:
    assert StrategyRegistry[name]["description"]
    unused = f"{name}_find_unused_parameters_true"
    for spelling in (name.upper(), unused):
        trainer = pl.Trainer(strategy=spelling, accelerator="cpu", devices=2, logger=False)
        assert type(trainer.strategy) is NAMES.get(name, PRESETS[name])
    options: Any = getattr(trainer.strategy, "of_ddp", {})
    assert options.get("find_unused_parameters") is (None if name.count("fsdp") else True)


class _PartlyUsed(Net):
    def __init__(self) -> None:
        super().__init__(optimizer="Adam")
        self.spare = torch.nn.Linear(3, 3)


def _fit_partly_used(strategy: Any) -> str:
    try:
        fit(strategy, 3, _PartlyUsed())
    except RuntimeError as error:
        return str(error)
    return ""


def _errors_about_unused_parameters() -> list[str]:
    failed = [
        *(lh.BMUFAdamStrategy(warmup_steps=4, block_size=2), lh.GTCStrategy(warmup_steps=0)),
        lh.HierarchicalStrategy(group_size="world"),
    ]
    works = [f"{name}_find_unused_parameters_true" for name in ("bmuf_adam", "gtc", "psp")]
    return [_fit_partly_used(strategy) for strategy in [*failed, *works]]


def test_unused_parameters_are_named_with_the_strategy_to_use() -> None:
    """In the warm-up, under GTC, and with exact gradients."""
    for adam, gtc, world, *works in run_ranks(_errors_about_unused_parameters, 2):
        for error, name in ((adam, "bmuf_adam"), (gtc, "gtc")):
            assert error.startswith("spare.weight, spare.bias got no gradient in a step")
            assert f"strategy='{name}_find_unused_parameters_true', or find_unused" in error
        assert "pass find_unused_parameters=True to the strategy" in world
        assert works == [""] * 3


NESTED = {
    "group_size": 2,
    "gradient_sync": {
        "class_path": "lightning_hier.GTC",
        "init_args": {"threshold": "auto", "density": 0.05},
    },
    "block_sync": {
        "class_path": "lightning_hier.BMUF",
        "init_args": {"block_size": 3, "block_momentum": 0.25},
    },
    "find_unused_parameters": True,
    "timeout": None,
}


def test_yaml_with_nested_objects(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    config = tmp_path / "config.yaml"
    strategy = {"class_path": "lightning_hier.HierarchicalStrategy", "init_args": NESTED}
    config.write_text(json.dumps({"trainer": {"accelerator": "cpu", "strategy": strategy}}))
    arguments: Any = [f"--config={config}"]
    cli = LightningCLI(Net, save_config_callback=None, run=False, args=arguments)
    made: Any = cli.trainer.strategy
    assert type(made) is lh.HierarchicalStrategy
    assert made.group_size == 2
    assert made.gradient_sync == lh.GTC(density=0.05)
    assert made.block_sync == lh.BMUF(block_size=3, block_momentum=0.25)
    assert made.of_ddp["find_unused_parameters"] is True
