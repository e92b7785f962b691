"""Four ranks under a Trainer arrive where the float64 twins do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from lightning_hier import (
    BMUF,
    GTC,
    BMUFGTCStrategy,
    BMUFStrategy,
    GTCStrategy,
    HierarchicalStrategy,
    ModelAveragingStrategy,
)
from lightning_hier.comm.blocks import shard
from tests.equivalence.cases import Case, difference, fit_all, identical, run_twin
from tests.equivalence.twins import Recipe, Values
from tests.ranks import run_ranks

TOLERANCE = 1e-10
MOMENTUM = {"momentum": 0.8, "lr": 0.05}
THRESHOLD = 0.02


def _ma(tau: int, **more: Any) -> Case:
    strategy = partial(ModelAveragingStrategy, block_size=tau, warmup_steps=0)
    return Case(name=f"MA tau={tau}", strategy=strategy, recipe=Recipe(tau=tau), **more)


def _bmuf(kind: str, tau: int, **more: Any) -> Case:
    options: dict[str, dict[str, Any]] = {
        "CBM": {"nesterov": False},
        "NBM": {},
        "start": {"update_from": "start"},
    }
    recipe = Recipe(
        tau=tau,
        eta=0.6,
        zeta=0.9,
        look_ahead=kind != "CBM",
        update_from="start" if kind == "start" else "global",
    )
    strategy = partial(
        BMUFStrategy,
        block_size=tau,
        block_momentum=0.6,
        block_lr=0.9,
        **options[kind],
        warmup_steps=0,
    )
    return Case(name=f"BMUF {kind} tau={tau}", strategy=strategy, recipe=recipe, **more)


def _two_tiers(group: int, **more: Any) -> Case:
    """BMUF_GTC with tau = 3; N of eta is the number of groups."""
    strategy = partial(
        BMUFGTCStrategy,
        group_size=group,
        threshold=THRESHOLD,
        dense_below=20,
        block_size=3,
        warmup_steps=0,
    )
    recipe = Recipe(group=group, tau=3, eta=1 - group / 4, threshold=THRESHOLD, exact_below=20)
    return Case(name=f"BMUF_GTC P={group}", strategy=strategy, recipe=recipe, **more)


def _gtc(exact_below: int) -> Case:
    return Case(
        name=f"GTC dense_below={exact_below}",
        strategy=partial(GTCStrategy, threshold=THRESHOLD, dense_below=exact_below, warmup_steps=0),
        recipe=Recipe(group=4, threshold=THRESHOLD, exact_below=exact_below),
        batches=12,
    )


def _exact_groups(across: str) -> Case:
    sync = BMUF(block_size=2, block_momentum=0.5, across=across)
    return Case(
        name=f"exact gradients in groups, {across}",
        strategy=partial(HierarchicalStrategy, group_size=2, block_sync=sync, warmup_steps=0),
        recipe=Recipe(group=2, tau=2, eta=0.5),
        **MOMENTUM,
    )


def _with_local_momentum(kind: str, group: int) -> Case:
    sync = BMUF(block_size=3, block_momentum=0.5, local_momentum=kind)
    strategy = partial(
        HierarchicalStrategy,
        group_size=group,
        gradient_sync=GTC(threshold=THRESHOLD, dense_below=0),
        block_sync=sync,
        warmup_steps=0,
    )
    recipe = Recipe(
        group=group,
        tau=3,
        eta=0.5,
        threshold=THRESHOLD,
        local_momentum=kind,
    )
    name = f"local_momentum={kind} P={group}"
    return Case(name=name, strategy=strategy, recipe=recipe, batches=11, **MOMENTUM)


def _accumulating(base: Case, batches: int) -> Case:
    name = f"{base.name}, accumulating, {batches} batches"
    return replace(base, name=name, accumulate=2, batches=batches, epochs=2)


def _pair(group: int, across: str) -> Case:
    """Optimizer a synchronises after steps 2, 4, ...; b, at a third of the pace, on its own."""
    sync = BMUF(block_size=2, block_momentum=0.5, across=across)
    strategy = partial(
        HierarchicalStrategy,
        group_size=group,
        gradient_sync=GTC(threshold=THRESHOLD, dense_below=10),
        block_sync=sync,
        find_unused_parameters=True,
        warmup_steps=0,
    )
    recipe = Recipe(group=group, tau=2, eta=0.5, threshold=THRESHOLD, exact_below=10)
    name = f"two optimizers P={group} {across}"
    return Case(name=name, strategy=strategy, recipe=recipe, net="pair", batches=16, **MOMENTUM)


def _batch_norm(group: int, across: str) -> Case:
    sync = BMUF(block_size=3, block_momentum=0.6, across=across)
    return Case(
        name=f"BatchNorm P={group} {across}",
        strategy=partial(HierarchicalStrategy, group_size=group, block_sync=sync, warmup_steps=0),
        recipe=Recipe(group=group, tau=3, eta=0.6),
        net="batch_norm",
        batches=8,
    )


def _rebinding(group: int, across: str) -> Case:
    name = f"rebound buffers P={group} {across}"
    return replace(_batch_norm(group, across), name=name, net="rebinding")


def _partly_used(group: int, local_momentum: str) -> Case:
    sync = BMUF(
        block_size=3,
        block_momentum=0.5,
        local_momentum=local_momentum,
    )
    strategy = partial(
        HierarchicalStrategy,
        group_size=group,
        gradient_sync=GTC(threshold=THRESHOLD, dense_below=0),
        block_sync=sync,
        find_unused_parameters=True,
        warmup_steps=0,
    )
    recipe = Recipe(
        group=group,
        tau=3,
        eta=0.5,
        threshold=THRESHOLD,
        local_momentum=local_momentum,
    )
    name = f"frozen and unused P={group} {local_momentum}"
    return Case(
        name=name, strategy=strategy, recipe=recipe, net="partly_used", batches=10, **MOMENTUM
    )


def _overlapping(base: Case) -> Case:
    def overlap(strategy: Any) -> partial:
        if strategy.func is HierarchicalStrategy:
            sync = replace(strategy.keywords["block_sync"], overlap=True)
            return partial(strategy, block_sync=sync)
        return partial(strategy, overlap=True)

    recipe = replace(base.recipe, overlap=True)
    name = f"{base.name}, overlapping"
    return replace(base, name=name, strategy=overlap(base.strategy), recipe=recipe)


def _warming(base: Case, warmup: int) -> Case:
    def warm(strategy: Any) -> partial:
        return partial(strategy, warmup_steps=warmup)

    recipe = replace(base.recipe, warmup=warmup)
    name = f"{base.name}, warm-up {warmup}"
    return replace(base, name=name, strategy=warm(base.strategy), recipe=recipe)


CASES = [
    *(_ma(tau) for tau in (1, 3, 50)),
    *(_bmuf(kind, tau) for kind in ("CBM", "NBM", "start") for tau in (1, 3, 50)),
    replace(_bmuf("NBM", 3), name="BMUF NBM, blocks across epochs", batches=4, epochs=3),
    *(_two_tiers(group, batches=11) for group in (1, 2, 4)),
    _gtc(0),
    _gtc(20),
    *(_exact_groups(across) for across in ("leader", "sharded")),
    *(
        _with_local_momentum(kind, group)
        for kind in ("reset", "keep", "average")
        for group in (1, 2, 4)
    ),
    _accumulating(_ma(2), 8),
    _accumulating(_two_tiers(2), 7),
    *(_pair(group, across) for group in (1, 2, 4) for across in ("leader", "sharded")),
    *(_batch_norm(group, across) for group in (1, 2, 4) for across in ("leader", "sharded")),
    *(_rebinding(group, across) for group, across in ((1, "leader"), (2, "sharded"))),
    _warming(_rebinding(2, "leader"), 3),
    _overlapping(_rebinding(2, "leader")),
    *(_partly_used(group, kind) for group in (1, 2) for kind in ("reset", "average")),
    replace(_two_tiers(2), name="tied weights", net="tied"),
    _warming(_ma(2, **MOMENTUM), 3),
    _warming(_two_tiers(2, batches=11, **MOMENTUM), 4),
    _warming(_two_tiers(4, batches=11), 4),
    _warming(_batch_norm(2, "leader"), 3),
    _warming(_pair(2, "leader"), 2),
    replace(_warming(_batch_norm(1, "leader"), 20), name="warm-up longer than the run"),
    replace(_two_tiers(2), name="compiled", compiled=True),
    *(_overlapping(_ma(tau, **MOMENTUM)) for tau in (1, 3)),
    *(_overlapping(_bmuf(kind, 2)) for kind in ("CBM", "NBM", "start")),
    _overlapping(replace(_bmuf("NBM", 3), name="blocks across epochs", batches=4, epochs=3)),
    *(_overlapping(_two_tiers(group, batches=11)) for group in (1, 2, 4)),
    *(_overlapping(_batch_norm(group, across)) for group, across in ((1, "auto"), (2, "sharded"))),
    *(_overlapping(_pair(2, across)) for across in ("leader", "sharded")),
    *(_overlapping(_partly_used(group, "reset")) for group in (1, 2)),
    _overlapping(_warming(_two_tiers(2, batches=11, **MOMENTUM), 4)),
]


def _in_small_chunks(cases: list[Case], elements: int) -> dict[str, Values]:
    """As models of millions of elements travel; a share may end in the middle of a chunk."""
    with mock.patch.object(shard, "CHUNK", elements):
        return fit_all(cases)


_WHOLE = [
    _two_tiers(1, batches=11),
    *(_exact_groups(across) for across in ("leader", "sharded")),
    *(_batch_norm(2, across) for across in ("leader", "sharded")),
]
CUT = [*_WHOLE, *map(_overlapping, _WHOLE), _with_local_momentum("average", 2)]


@pytest.fixture(scope="module", params=[7, 64])
def cut_states(request: pytest.FixtureRequest) -> list[dict[str, Values]]:
    """Final states of runs whose models travel in so small chunks, on two hosts of two ranks."""
    return run_ranks(_in_small_chunks, 4, CUT, request.param, ranks_per_node=2)


@pytest.mark.parametrize("case", CUT, ids=lambda case: case.name)
def test_chunks_and_hosts_change_nothing(case: Case, cut_states: list[dict[str, Values]]) -> None:
    """The second host's ranks meet each other first where there are several groups on one."""
    expected = run_twin(case).global_model()
    assert difference(cut_states[0][case.name], expected) < TOLERANCE
    for rank in (1, 2, 3):
        assert identical(cut_states[rank][case.name], cut_states[0][case.name]), f"rank {rank}"


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states, rank by rank."""
    return run_ranks(fit_all, 4, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_trainer_arrives_where_the_twin_does(case: Case, states: list[dict[str, Values]]) -> None:
    expected = run_twin(case).global_model()
    assert difference(states[0][case.name], expected) < TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_ranks_end_on_the_same_bits(case: Case, states: list[dict[str, Values]]) -> None:
    for rank in (1, 2, 3):
        assert identical(states[rank][case.name], states[0][case.name]), f"rank {rank}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_twin_has_something_to_tell(case: Case) -> None:
    """The recipe matters: ranks that never meet would end elsewhere."""
    alone = replace(case, recipe=Recipe(group=1, tau=50))
    expected, other = run_twin(case).global_model(), run_twin(alone).global_model()
    same = case.recipe == Recipe(tau=50)
    assert same or difference(other, expected) > 1e-6
