"""Strategies that should be the same are the same, most of them to the last bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lightning_hier import (
    BMUF,
    GTC,
    BMUFGTCStrategy,
    BMUFStrategy,
    GTCStrategy,
    HierarchicalStrategy,
    ModelAveragingStrategy,
)
from tests.equivalence.cases import Case, difference, fit_all, identical
from tests.equivalence.twins import Values
from tests.ranks import run_ranks

MOMENTUM = {"momentum": 0.8, "lr": 0.05}


def _plain_ddp() -> str:
    return "ddp"


def _one_device() -> str:
    return "auto"


def _case(name: str, strategy: Any, *args: Any, net: str = "mlp", **options: Any) -> Case:
    made = partial(strategy, *args, **options)
    return Case(name=name, strategy=made, net=net, epochs=2, **MOMENTUM)


def _across(name: str, group: int, across: str) -> Case:
    sync = BMUF(block_size=3, block_momentum=0.6, local_momentum="average", across=across)
    gtc = GTC(threshold=0.02, dense_below=0)
    options = {"group_size": group, "gradient_sync": gtc, "block_sync": sync}
    return _case(name, HierarchicalStrategy, net="batch_norm", **options, warmup_steps=0)


_GTC = {"threshold": 0.02, "dense_below": 20}
_AUTO = {"density": 0.1, "dense_below": 20}

# Pairs that agree to the last bit.
IDENTICAL: list[tuple[Case, Case]] = [
    (
        _case("BMUF, eta = 0", BMUFStrategy, block_size=3, block_momentum=0.0, warmup_steps=0),
        _case("MA", ModelAveragingStrategy, block_size=3, warmup_steps=0),
    ),
    (
        _case(
            "BMUF-CBM, eta = 0",
            BMUFStrategy,
            block_size=3,
            block_momentum=0.0,
            nesterov=False,
            warmup_steps=0,
        ),
        _case("MA again", ModelAveragingStrategy, block_size=3, warmup_steps=0),
    ),
    (
        _case(
            "BMUF_GTC, P = 1", BMUFGTCStrategy, group_size=1, block_size=3, **_GTC, warmup_steps=0
        ),
        _case("BMUF", BMUFStrategy, block_size=3, warmup_steps=0),
    ),
    (
        _case(
            "BMUF_GTC, M = 1", BMUFGTCStrategy, group_size=4, block_size=3, **_GTC, warmup_steps=0
        ),
        _case("GTC", GTCStrategy, **_GTC, warmup_steps=0),
    ),
    (
        _case(
            "BMUF_GTC, M = 1, auto",
            BMUFGTCStrategy,
            group_size=4,
            block_size=3,
            **_AUTO,
            warmup_steps=0,
        ),
        _case("GTC, auto", GTCStrategy, **_AUTO, warmup_steps=0),
    ),
    (
        _case(
            "GTC, everything exact", GTCStrategy, dense_below=10_000, warmup_steps=0, density=0.01
        ),
        _case("AllReduce in one group", HierarchicalStrategy, group_size="world", warmup_steps=0),
    ),
]

# Pairs that agree up to the order of additions.
CLOSE: list[tuple[Case, Case]] = [
    (
        replace(
            _case("MA, tau = 1", ModelAveragingStrategy, block_size=1, warmup_steps=0), momentum=0.0
        ),
        replace(_case("DDP", _plain_ddp), momentum=0.0),
    ),
    (
        _case(
            "MA, tau = 1, average momentum",
            ModelAveragingStrategy,
            block_size=1,
            local_momentum="average",
            warmup_steps=0,
        ),
        _case("DDP, momentum", _plain_ddp),
    ),
    (
        _case("AllReduce, one group", HierarchicalStrategy, group_size="world", warmup_steps=0),
        _case("DDP again", _plain_ddp),
    ),
    (
        _case("warm-up only", BMUFStrategy, warmup_steps=14),
        _case("DDP once more", _plain_ddp),
    ),
    (_across("leader, P = 2", 2, "leader"), _across("sharded, P = 2", 2, "sharded")),
    (_across("leader, P = 4", 4, "leader"), _across("sharded, P = 4", 4, "sharded")),
    (_across("auto, P = 2", 2, "auto"), _across("sharded again, P = 2", 2, "sharded")),
]

# On one rank.
ALONE: list[tuple[Case, Case]] = [
    (
        _case(f"{strategy.strategy_name} alone, {net}", strategy, net=net),
        _case(f"plain for {strategy.strategy_name}, {net}", _one_device, net=net),
    )
    for strategy in (BMUFStrategy, ModelAveragingStrategy, GTCStrategy, BMUFGTCStrategy)
    for net in ("batch_norm", "dropout")
]


def _name_of(pair: tuple[Case, Case]) -> str:
    return f"{pair[0].name} is {pair[1].name}"


@pytest.fixture(scope="module")
def states() -> dict[str, Values]:
    """Final states of the runs on four ranks, from rank 0."""
    return run_ranks(fit_all, 4, [case for pair in [*IDENTICAL, *CLOSE] for case in pair])[0]


@pytest.fixture(scope="module")
def lone_states() -> dict[str, Values]:
    """Final states of the runs on one rank."""
    return run_ranks(fit_all, 1, [case for pair in ALONE for case in pair])[0]


@pytest.mark.parametrize("pair", IDENTICAL, ids=_name_of)
def test_equal_to_the_last_bit(pair: tuple[Case, Case], states: dict[str, Values]) -> None:
    assert identical(states[pair[0].name], states[pair[1].name])


@pytest.mark.parametrize("pair", CLOSE, ids=_name_of)
def test_equal_up_to_rounding(pair: tuple[Case, Case], states: dict[str, Values]) -> None:
    assert difference(states[pair[0].name], states[pair[1].name]) < 1e-12


@pytest.mark.parametrize("pair", ALONE, ids=_name_of)
def test_on_one_rank_nothing_is_added(
    pair: tuple[Case, Case], lone_states: dict[str, Values]
) -> None:
    assert identical(lone_states[pair[0].name], lone_states[pair[1].name])


def test_different_strategies_differ(states: dict[str, Values]) -> None:
    """Equality above is not for want of a difference."""
    names = ["MA", "BMUF", "GTC", "GTC, auto", "DDP, momentum", "leader, P = 2"]
    weights = [next(iter(states[name].values())) for name in names]
    for i, one in enumerate(weights):
        for other in weights[:i]:
            assert not torch.allclose(one, other, rtol=1e-6)
