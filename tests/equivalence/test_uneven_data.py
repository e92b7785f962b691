"""Ranks that run out of batches join the others: against float64 twins, on two and four ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import lightning_hier as lh
from tests.equivalence.adam_twins import AdamRecipe, Rule
from tests.equivalence.cases import difference, identical
from tests.equivalence.twins import Recipe
from tests.equivalence.uneven import AnyCase, Told, UnevenAdamCase, UnevenCase, run_all, twin_of
from tests.ranks import run_ranks

TOLERANCE = 1e-10
JOIN: dict[str, Any] = {"uneven_batches": "join"}


def _case(name: str, counts: tuple[int, ...], group: int = 1, **more: Any) -> UnevenCase:
    """BMUF with tau = 3 in exact groups; blocks run on across epochs."""
    settings = {"tau": 3, "eta": 0.6, "zeta": 0.9} | more.pop("recipe", {})
    sync = lh.BMUF(
        block_size=settings["tau"],
        block_momentum=settings["eta"],
        block_lr=settings["zeta"],
        local_momentum=settings.get("local_momentum", "reset"),
        across=more.pop("across", "auto"),
    )
    strategy = partial(
        lh.HierarchicalStrategy,
        group_size=group,
        block_sync=sync,
        warmup_steps=settings.get("warmup", 0),
        find_unused_parameters=True,
        **JOIN,
    )
    recipe = Recipe(world=len(counts), group=group, **settings)
    given = {"epochs": 3, "momentum": 0.5} | more
    return UnevenCase(name=name, strategy=strategy, recipe=recipe, counts=counts, **given)


def _averaging(counts: tuple[int, ...]) -> UnevenCase:
    strategy = partial(lh.ModelAveragingStrategy, block_size=3, **JOIN, warmup_steps=0)
    recipe = Recipe(world=len(counts), tau=3)
    return UnevenCase(
        name=f"model averaging {counts}", strategy=strategy, recipe=recipe, counts=counts, epochs=3
    )


def _gtc() -> UnevenCase:
    strategy = partial(
        lh.BMUFGTCStrategy,
        group_size=2,
        threshold=0.02,
        dense_below=0,
        block_size=3,
        **JOIN,
        warmup_steps=0,
    )
    recipe = Recipe(group=2, tau=3, eta=0.5, threshold=0.02)
    counts = (4, 4, 7, 7)
    return UnevenCase(name="GTC", strategy=strategy, recipe=recipe, counts=counts, epochs=3)


def _adam(moments: str) -> UnevenAdamCase:
    strategy = partial(
        lh.BMUFAdamStrategy,
        block_size=3,
        moments=moments,
        **JOIN,
        warmup_steps=0,
        local_beta1="keep",
    )
    recipe = AdamRecipe(tau=3, eta=0.75, corrected=moments == "corrected", local_momentum="keep")
    return UnevenAdamCase(
        name=f"Adam, {moments}",
        strategy=strategy,
        recipe=recipe,
        rule=Rule(lr=0.02, betas=(0.8, 0.95)),
        counts=UNEVEN,
        epochs=3,
    )


UNEVEN = (7, 3, 9, 5)
PAIRS = [_averaging((5, 8)), _averaging((6, 4)), _case("last first", (1, 8))]
FOURS: list[AnyCase] = [
    _case("BMUF", UNEVEN),
    _case("even", (5, 5, 5, 5)),
    _case("one block for all", UNEVEN, recipe={"tau": 50}),
    _case("a block a step", UNEVEN, recipe={"tau": 1}),
    _case("unknown lengths", UNEVEN, unknown=True),
    _case("averaged momentum", UNEVEN, recipe={"local_momentum": "average"}),
    _case("BatchNorm", UNEVEN, net="batch_norm"),
    _case("accumulating", UNEVEN, accumulate=2),
    _case("warm-up that ends with the first rank", UNEVEN, recipe={"warmup": 3}),
    _case("groups, leader", (7, 7, 4, 4), 2, across="leader"),
    _case("groups, sharded", (4, 4, 7, 7), 2, across="sharded", net="batch_norm"),
    _case("two optimizers", (7, 7, 4, 4), 2, net="pair", recipe={"tau": 2}),
    _gtc(),
    _adam("corrected"),
    _adam("average"),
]
CASES = [*PAIRS, *FOURS]


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Told]]:
    """For each case what the ranks saw."""
    found: dict[str, list[Told]] = {}
    for cases in (PAIRS, FOURS):
        world = len(cases[0].counts)
        by_rank = run_ranks(run_all, world, cases)
        found |= {case.name: [own[case.name] for own in by_rank] for case in cases}
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ranks_that_join_make_the_models_of_the_twin(
    case: AnyCase, runs: dict[str, list[Told]]
) -> None:
    twins = twin_of(case)
    for rank, (own, twin) in enumerate(zip(runs[case.name], twins, strict=True)):
        for epoch, (mine, its) in enumerate(zip(own.local, twin.local, strict=True)):
            assert len(mine) == case.counts[rank]
            if case.accumulate == 1:
                for batch, (values, twins_values) in enumerate(zip(mine, its, strict=True)):
                    where = f"rank {rank}, epoch {epoch}, batch {batch}"
                    assert difference(values, twins_values) < TOLERANCE, where
        for epoch in range(case.epochs):
            for looks in (own.looked, own.validated):
                assert len(looks) == case.epochs
                assert difference(looks[epoch], twin.looked[epoch]) < TOLERANCE, epoch
        assert difference(own.final, twin.final) < TOLERANCE
        assert own.steps == twin.steps
    first, *others = runs[case.name]
    for other in others:
        assert identical(first.final, other.final)
        assert first.blocks == other.blocks


def test_what_was_compared_differs_from_leaving_the_idle_out() -> None:
    """The control: the twin's mean is over all models, and it matters."""
    case = next(case for case in FOURS if case.name == "BMUF")
    shortest = replace(case, counts=(7, 3, 9, 3))
    assert difference(twin_of(case)[0].final, twin_of(shortest)[0].final) > 1e-3
