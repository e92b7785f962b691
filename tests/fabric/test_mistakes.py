"""Mistakes in a loop of Fabric: one clear error on every rank."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import pytest
from lightning.fabric import Fabric
from torch import nn

import lightning_hier as lh
from lightning_hier import fabric
from lightning_hier.fabric import HierarchicalStrategy
from tests.fabric.loops import launched
from tests.loop.loops import adam, network
from tests.ranks import run_ranks
from tests.trainer.mistakes import Mistakes, check_mistakes


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


def _run() -> Fabric:
    return launched(HierarchicalStrategy(group_size=1))


def _no_block_sync() -> None:
    module = network()
    _run().setup(module, adam(module))


def _other_shapes() -> None:
    run = launched(HierarchicalStrategy(group_size=2, block_sync=lh.BMUF()))
    module = nn.Linear(4, 2 + run.global_rank)
    run.setup(module, adam(module))


_TOGETHER = r"fabric.setup\(model, optimizer\)"
MISTAKES: Mistakes = {
    "module_alone": (lambda: _run().setup_module(network()), _TOGETHER),
    "optimizer_alone": (lambda: _run().setup_optimizers(adam(network())), _TOGETHER),
    "models_differ": (_other_shapes, r"bias \(2,\) .* rank 0;.* bias \(3,\) .* rank 1"),
    "no_block_sync": (_no_block_sync, "would never be synchronised"),
}


def test_wrong_set_up() -> None:
    check_mistakes(__name__, ranks=2)


@pytest.mark.parametrize(
    "name", ["gtc", "model_averaging", "bmuf", "bmuf_adam", "bmuf_gtc", "diloco"]
)
def test_every_name_is_registered(name: str) -> None:
    strategy = Fabric(accelerator="cpu", devices=1, strategy=name).strategy
    assert isinstance(strategy, HierarchicalStrategy) and strategy.strategy_name == name
    unused = Fabric(accelerator="cpu", devices=1, strategy=f"{name}_find_unused_parameters_true")
    assert type(unused.strategy) is type(strategy)


def _accepted() -> tuple[bool, str]:
    """Whether a frozen module is taken as it is, and what setting up a module prints."""
    text = io.StringIO()
    with redirect_stderr(text):
        run = launched(HierarchicalStrategy(group_size=1, block_sync=lh.BMUF(), total_steps=90))
        teacher, module = network().requires_grad_(False), network()
        taken = run.setup_module(teacher).module is teacher
        run.setup(module, adam(module))
    return taken, text.getvalue()


def test_frozen_modules_need_no_optimizer_and_automatic_values_are_shown_without_a_log() -> None:
    first, second = run_ranks(_accepted, 2)
    assert first[0] and second[0]
    assert "block_size=" in first[1] and "block_size=" not in second[1]


def test_presets_take_their_own_arguments_and_those_of_the_strategy() -> None:
    strategy = fabric.BMUFGTCStrategy(group_size=2, density=0.02, total_steps=9)
    assert strategy.settings["gradient_sync"] == lh.GTC(density=0.02)
    assert strategy.settings["total_steps"] == 9
    with pytest.raises(ValueError, match="sets block_sync itself"):
        fabric.BMUFStrategy(block_sync=lh.BMUF())
