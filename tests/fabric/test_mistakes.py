"""Mistakes in a loop of Fabric: one clear error on every rank."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import pytest
from lightning.fabric import Fabric

import lightning_hier as lh
from lightning_hier import fabric
from lightning_hier.fabric import HierarchicalStrategy
from tests.fabric.loops import launched
from tests.loop.loops import adam, network
from tests.ranks import run_ranks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 0}, "group_size must be"),
        ({"total_steps": 0}, "total_steps must be"),
        ({"process_group": 1}, "use group_size"),
        ({"block_sync": lh.BMUF(weighting="samples")}, "use a plain loop"),
    ],
)
def test_wrong_values(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchicalStrategy(**settings)


def test_unknown_argument() -> None:
    with pytest.raises(TypeError, match="did you mean 'block_sync'"):
        HierarchicalStrategy(blok_sync=lh.BMUF())


def _module_alone(run: Fabric) -> None:
    run.setup_module(network())


def _optimizer_alone(run: Fabric) -> None:
    run.setup_optimizers(adam(network()))


def _no_block_sync(run: Fabric) -> None:
    module = network()
    run.setup(module, adam(module))


def _run(mistake: Callable[[Fabric], None]) -> None:
    mistake(launched(HierarchicalStrategy(group_size=1)))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (_module_alone, "fabric.setup(model, optimizer)"),
        (_optimizer_alone, "fabric.setup(model, optimizer)"),
        (_no_block_sync, "would never be synchronised"),
    ],
)
def test_wrong_set_up(mistake: Callable[[Fabric], None], message: str) -> None:
    for error in run_ranks(_run, 2, mistake, expect_failure=True):
        assert error.startswith("ValueError") and message in error


def frozen() -> bool:
    run = launched(HierarchicalStrategy(group_size=1, block_sync=lh.BMUF()))
    teacher = network().requires_grad_(False)
    return run.setup_module(teacher).module is teacher


def test_a_frozen_module_needs_no_optimizer() -> None:
    assert run_ranks(frozen, 2) == [True, True]


@pytest.mark.parametrize(
    "name", ["gtc", "model_averaging", "bmuf", "bmuf_adam", "bmuf_gtc", "diloco"]
)
def test_every_name_is_registered(name: str) -> None:
    strategy = Fabric(accelerator="cpu", devices=1, strategy=name).strategy
    assert isinstance(strategy, HierarchicalStrategy) and strategy.strategy_name == name
    unused = Fabric(accelerator="cpu", devices=1, strategy=f"{name}_find_unused_parameters_true")
    assert type(unused.strategy) is type(strategy)


def automatic() -> str:
    text = io.StringIO()
    with redirect_stderr(text):
        run = launched(HierarchicalStrategy(group_size=1, block_sync=lh.BMUF(), total_steps=90))
        module = network()
        run.setup(module, adam(module))
    return text.getvalue()


def test_automatic_values_are_shown_without_configuring_a_log() -> None:
    first, second = run_ranks(automatic, 2)
    assert "block_size=" in first and "block_size=" not in second


def test_presets_take_their_own_arguments_and_those_of_the_strategy() -> None:
    strategy = fabric.BMUFGTCStrategy(group_size=2, density=0.02, total_steps=9)
    assert strategy.settings["gradient_sync"] == lh.GTC(density=0.02)
    assert strategy.settings["total_steps"] == 9
    with pytest.raises(ValueError, match="sets block_sync itself"):
        fabric.BMUFStrategy(block_sync=lh.BMUF())
