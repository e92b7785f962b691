"""Settings of different strategies that mean the same training give equal models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lightning_hier import (
    BMUF,
    BlockMomentum,
    BMUFAdam,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    DiLoCoStrategy,
    GTCStrategy,
    HierarchicalStrategy,
    ModelAveragingStrategy,
)
from tests.equivalence.cases import Case, Values, case, difference, fit_all, identical
from tests.ranks import run_ranks

MOMENTUM: dict[str, Any] = {"momentum": 0.8, "lr": 0.05}


def _case(name: str, strategy: Any, net: str = "mlp", **settings: Any) -> Case:
    return case(name, strategy, net=net, **{**MOMENTUM, **settings})


def _plain(name: str, strategy: str, **settings: Any) -> Case:
    return Case(name=name, strategy=partial(str, strategy), **MOMENTUM, **settings)


def _across(across: str) -> Case:
    blocks = {"block_size": 3, "block_momentum": 0.6, "local_momentum": "average"}
    # With GTC of updates, each rank has momentum of its own, and the leader's is averaged.
    gtc = {"threshold": 0.02, "dense_below": 0, "of": "gradient"}
    settings = {"group_size": 2, "across": across, **blocks, **gtc}
    return _case(across, HierarchicalStrategy, net="batch_norm", **settings)


_GTC = {"threshold": 0.02, "dense_below": 20}
_AUTO = {"density": 0.1, "dense_below": 20}
_MA = partial(_case, strategy=ModelAveragingStrategy)
_BMUF = partial(_case, strategy=BMUFStrategy, block_size=3)
_DILOCO = partial(_case, strategy=DiLoCoStrategy, group_size=1, block_size=3)
_BMUF_GTC = partial(_case, strategy=BMUFGTCStrategy, block_size=3)
_ONE_GROUP = partial(HierarchicalStrategy, group_size="world", warmup_steps=0)
_EXACT = Case(name="AllReduce in one group", strategy=_ONE_GROUP, **MOMENTUM)
_INT8 = BMUF(block_size=3, across_dtype="int8")
_DDP = _plain("DDP", "ddp")
_NADAM: dict[str, Any] = {"rule": partial(torch.optim.NAdam, lr=0.02, betas=(0.8, 0.98))}
_BMUF_ADAM = BMUFAdam(block_size=3, local_beta1="keep")

# Pairs whose models are bit-equal.
IDENTICAL: list[tuple[Case, Case]] = [
    (_BMUF("BMUF, eta = 0", block_momentum=0.0), _MA("MA", block_size=3)),
    (
        _BMUF("BMUF, momentum kept", block_momentum=0.5, local_momentum="keep"),
        _DILOCO("DiLoCo", outer_optimizer=partial(BlockMomentum, block_momentum=0.5)),
    ),
    (_BMUF("BMUF, local_lr", local_lr=0.5, lr=0.1), _BMUF("BMUF, half the rate", lr=0.05)),
    (_BMUF_GTC("BMUF_GTC, P = 1", group_size=1, **_GTC), _BMUF("BMUF")),
    (_BMUF_GTC("BMUF_GTC, M = 1", group_size=4, **_AUTO), _case("GTC", GTCStrategy, **_AUTO)),
    (
        _case("GTC, everything exact", GTCStrategy, dense_below=10**4, density=0.01, of="gradient"),
        _EXACT,
    ),
    # A single group has no exchange, so nothing is quantised.
    (replace(_EXACT, name="int8, M = 1", strategy=partial(_ONE_GROUP, block_sync=_INT8)), _EXACT),
]

# Pairs whose models are equal up to the order of additions.
CLOSE: list[tuple[Case, Case]] = [
    (_MA("MA, tau = 1, average momentum", block_size=1, local_momentum="average"), _DDP),
    (_EXACT, _DDP),
    # The steps of SGD with momentum are linear in the gradients.
    (_case("GTC of updates, everything exact", GTCStrategy, dense_below=10**4, density=0.01), _DDP),
    (_case("warm-up only", BMUFStrategy, warmup_steps=7), _DDP),
    (_across("leader"), _across("sharded")),
    (
        Case(name="NAdam, M = 1", strategy=partial(_ONE_GROUP, block_sync=_BMUF_ADAM), **_NADAM),
        Case(name="DDP with NAdam", strategy=partial(str, "ddp"), **_NADAM),
    ),
]

# Pairs on one rank, with automatic settings.
ALONE: list[tuple[Case, Case]] = [
    (Case(name=f"{own}, {net}", strategy=own, net=net, **MOMENTUM), _plain(net, "auto", net=net))
    for own, net in (
        (BMUFStrategy, "batch_norm"),
        (GTCStrategy, "batch_norm"),
        (BMUFGTCStrategy, "dropout"),
    )
]
ALONE += [
    (
        Case(name="BMUF-Adam", strategy=BMUFAdamStrategy, **_NADAM),
        Case(name="NAdam", strategy=partial(str, "auto"), **_NADAM),
    )
]


def _name_of(pair: tuple[Case, Case]) -> str:
    return f"{pair[0].name} is {pair[1].name}"


@pytest.fixture(scope="module")
def states() -> dict[str, Values]:
    """Final states of rank 0 in the runs on four ranks."""
    cases = {own.name: own for pair in [*IDENTICAL, *CLOSE] for own in pair}
    return run_ranks(fit_all, 4, list(cases.values()))[0]


@pytest.fixture(scope="module")
def lone_states() -> dict[str, Values]:
    """Final states of the runs on one rank."""
    cases = {own.name: own for pair in ALONE for own in pair}
    return run_ranks(fit_all, 1, list(cases.values()))[0]


@pytest.mark.parametrize("pair", IDENTICAL, ids=_name_of)
def test_equal_to_the_last_bit(pair: tuple[Case, Case], states: dict[str, Values]) -> None:
    assert identical(states[pair[0].name], states[pair[1].name])


@pytest.mark.parametrize("pair", CLOSE, ids=_name_of)
def test_equal_up_to_rounding(pair: tuple[Case, Case], states: dict[str, Values]) -> None:
    assert difference(states[pair[0].name], states[pair[1].name]) < 1e-12


@pytest.mark.parametrize("pair", ALONE, ids=_name_of)
def test_on_one_rank_training_is_that_of_lightning(
    pair: tuple[Case, Case], lone_states: dict[str, Values]
) -> None:
    assert identical(lone_states[pair[0].name], lone_states[pair[1].name])


def test_different_strategies_differ(states: dict[str, Values]) -> None:
    """The tests above would fail if a strategy did not apply its method."""
    names = ["MA", "BMUF", "GTC", "DDP", "leader"]
    weights = [next(iter(states[name].values())) for name in names]
    for i, one in enumerate(weights):
        for other in weights[:i]:
            assert not torch.allclose(one, other, rtol=1e-6)
