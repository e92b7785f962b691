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
from tests.trainer.fitting import Net, fit, loader

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


@pytest.mark.parametrize("name", NAMES)
def test_trainer_finds_the_name_in_any_case(name: str) -> None:
    assert StrategyRegistry[name]["description"]
    for spelling in (name, name.upper()):
        trainer = pl.Trainer(strategy=spelling, accelerator="cpu", devices=2, logger=False)
        assert type(trainer.strategy) is NAMES[name]


@pytest.mark.parametrize("name", PRESETS)
def test_every_name_exists_for_modules_with_unused_parameters(name: str) -> None:
    name += "_find_unused_parameters_true"
    trainer = pl.Trainer(strategy=name, accelerator="cpu", devices=2, logger=False)
    options: Any = getattr(trainer.strategy, "of_ddp", {})
    assert options.get("find_unused_parameters") is (None if name.count("fsdp") else True)


class _PartlyUsed(Net):
    def __init__(self) -> None:
        super().__init__(optimizer="Adam")
        self.spare = torch.nn.Linear(3, 3)


def _fit_partly_used(strategy: Any) -> str:
    try:
        fit(strategy, 8, _PartlyUsed())
    except RuntimeError as error:
        return str(error)
    return ""


def _errors_about_unused_parameters() -> list[str]:
    names = ("bmuf_adam", "gtc", "psp", "two_stage_asgd")
    failed = [
        *(lh.BMUFAdamStrategy(warmup_steps=4, block_size=2), lh.GTCStrategy(warmup_steps=0)),
        lh.HierarchicalStrategy(group_size="world"),
    ]
    works = [f"{name}_find_unused_parameters_true" for name in names]
    return [_fit_partly_used(strategy) for strategy in [*failed, *works]]


def test_unused_parameters_are_named_with_the_strategy_to_use() -> None:
    """In the warm-up, under GTC, and with exact gradients."""
    for adam, gtc, world, *works in run_ranks(_errors_about_unused_parameters, 2):
        for error, name in ((adam, "bmuf_adam"), (gtc, "gtc")):
            assert error.startswith("spare.weight, spare.bias got no gradient in a step")
            assert f"strategy='{name}_find_unused_parameters_true', or find_unused" in error
        assert "pass find_unused_parameters=True to the strategy" in world
        assert works == [""] * 4


def _fit_by_each_name() -> dict[str, str]:
    nets = {"bmuf_adam": Net(optimizer="Adam", betas=(0.5, 0.999))}
    return {name: type(fit(name.upper(), 2, nets.get(name)).strategy).__name__ for name in NAMES}


def test_every_name_trains() -> None:
    expected = {name: kind.__name__ for name, kind in NAMES.items()}
    assert run_ranks(_fit_by_each_name, 2) == [expected] * 2


YAML = """
seed_everything: 3
trainer:
  accelerator: cpu
  devices: 2
  max_epochs: 1
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  strategy:
    class_path: {class_path}
    init_args: {init_args}
"""

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


def _command_line(*arguments: str) -> Any:
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    cli = LightningCLI(Net, save_config_callback=None, run=False, args=list(arguments))
    return cli.trainer.strategy


def _yaml(tmp_path: Path, kind: type[Any], arguments: dict[str, Any]) -> Any:
    config = tmp_path / "config.yaml"
    class_path = f"lightning_hier.{kind.__name__}"
    config.write_text(YAML.format(class_path=class_path, init_args=json.dumps(arguments)))
    strategy = _command_line(f"--config={config}")
    assert type(strategy) is kind
    return strategy


def test_yaml_with_nested_objects(tmp_path: Path) -> None:
    strategy = _yaml(tmp_path, lh.HierarchicalStrategy, NESTED)
    assert strategy.group_size == 2
    assert strategy.gradient_sync == lh.GTC(density=0.05)
    assert strategy.block_sync == lh.BMUF(block_size=3, block_momentum=0.25)
    assert strategy.of_ddp["find_unused_parameters"] is True


def _fit_from_the_command_line() -> tuple[int, int]:
    """Train with a strategy of the command line.

    The parser passes every argument of DDP, such as `process_group=None`.
    """
    from lightning.pytorch.cli import LightningCLI

    arguments = [
        "--trainer.accelerator=cpu",
        "--trainer.devices=2",
        "--trainer.logger=false",
        "--trainer.max_epochs=1",
        "--trainer.enable_checkpointing=false",
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
        "--trainer.strategy.class_path=lightning_hier.BMUFGTCStrategy",
        "--trainer.strategy.group_size=1",
        "--trainer.strategy.process_group=null",
    ]
    cli = LightningCLI(Net, save_config_callback=None, run=False, args=arguments)
    cli.trainer.fit(cli.model, loader(4))
    return cli.trainer.global_step, cli.trainer.strategy.communicators.group.size


def test_strategy_from_the_command_line_trains() -> None:
    pytest.importorskip("jsonargparse")
    assert run_ranks(_fit_from_the_command_line, 2) == [(4, 1), (4, 1)]
