"""Groups that diverge are left out of the mean, and nobody else notices: against float64 twins."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lightning_hier import (
    BMUF,
    BMUFAdam,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    HierarchicalStrategy,
    ModelAveragingStrategy,
)
from tests.equivalence.adam_twins import AdamRecipe, Rule
from tests.equivalence.cases import difference, identical
from tests.equivalence.faults import (
    AnyCase,
    Fault,
    FaultyAdamCase,
    FaultyCase,
    Told,
    run_all,
    twin_of,
)
from tests.equivalence.twins import Recipe, Values
from tests.ranks import run_ranks

TOLERANCE = 1e-10
INF = float("inf")
EXCLUDE: dict[str, Any] = {"on_nonfinite": "exclude"}


def _bmuf(name: str, *faults: Fault, nesterov: bool = True, **more: Any) -> FaultyCase:
    strategy = partial(
        BMUFStrategy,
        block_size=3,
        block_momentum=0.6,
        block_lr=0.9,
        nesterov=nesterov,
        **EXCLUDE,
        warmup_steps=0,
    )
    recipe = Recipe(tau=3, eta=0.6, zeta=0.9, look_ahead=nesterov)
    settings = {"batches": 10, "momentum": 0.5} | more
    return FaultyCase(name=name, strategy=strategy, recipe=recipe, faults=faults, **settings)


def _overlapping(name: str, *faults: Fault) -> FaultyCase:
    """What the others have on its way when a worker falls sick arrives there too."""
    base = _bmuf(name, *faults)
    strategy: Any = base.strategy
    return replace(
        base, strategy=partial(strategy, overlap=True), recipe=replace(base.recipe, overlap=True)
    )


def _two_tiers(name: str, *faults: Fault, across: str, **more: Any) -> FaultyCase:
    """Automatic eta: that of two groups, also for the blocks in which one of them is left out."""
    sync = BMUF(block_size=3, across=across, local_momentum=more.pop("local_momentum", "reset"))
    strategy = partial(
        HierarchicalStrategy, group_size=2, block_sync=sync, **EXCLUDE, warmup_steps=0
    )
    recipe = Recipe(group=2, tau=3, eta=0.5, local_momentum=sync.local_momentum)
    settings = {"batches": 10, "momentum": 0.5} | more
    return FaultyCase(name=name, strategy=strategy, recipe=recipe, faults=faults, **settings)


def _gtc(name: str, *faults: Fault) -> FaultyCase:
    strategy = partial(
        BMUFGTCStrategy,
        group_size=2,
        threshold=0.02,
        dense_below=0,
        block_size=3,
        **EXCLUDE,
        warmup_steps=0,
    )
    recipe = Recipe(group=2, tau=3, eta=0.5, threshold=0.02)
    return FaultyCase(name=name, strategy=strategy, recipe=recipe, faults=faults, batches=10)


def _adam(name: str, *faults: Fault, rule: Rule | None = None, group: int = 1) -> FaultyAdamCase:
    recipe = AdamRecipe(group=group, tau=3, eta=1 - group / 4, local_momentum="keep")
    strategy: Any = partial(
        BMUFAdamStrategy, block_size=3, **EXCLUDE, warmup_steps=0, local_beta1="keep"
    )
    if group > 1:
        sync = BMUFAdam(block_size=3, across="sharded", local_beta1="keep")
        strategy = partial(
            HierarchicalStrategy, group_size=group, block_sync=sync, **EXCLUDE, warmup_steps=0
        )
    return FaultyAdamCase(
        name=name,
        strategy=strategy,
        recipe=recipe,
        rule=rule or Rule(lr=0.02, betas=(0.8, 0.95)),
        batches=10,
        faults=faults,
    )


def _averaging(name: str, *faults: Fault) -> FaultyCase:
    strategy = partial(ModelAveragingStrategy, block_size=3, **EXCLUDE, warmup_steps=0)
    recipe = Recipe(tau=3)
    return FaultyCase(name=name, strategy=strategy, recipe=recipe, faults=faults, batches=10)


def _pair() -> FaultyCase:
    """The second optimizer's part of one rank is sick, the first one's is not."""
    sync = BMUF(block_size=2, block_momentum=0.6)
    strategy = partial(
        HierarchicalStrategy,
        group_size=2,
        block_sync=sync,
        find_unused_parameters=True,
        **EXCLUDE,
        warmup_steps=0,
    )
    return FaultyCase(
        name="two optimizers",
        strategy=strategy,
        recipe=Recipe(group=2, tau=2, eta=0.6),
        net="pair",
        batches=12,
        faults=(Fault(batch=4, rank=2, where="weight"),),
    )


NAN_GRADIENT = Fault(batch=1, rank=1)
CASES: list[AnyCase] = [
    _bmuf("a gradient", NAN_GRADIENT),
    _bmuf(
        "rank 0, twice, and another", *(Fault(batch=b, rank=r) for b, r in [(0, 0), (4, 3), (5, 0)])
    ),
    _bmuf("three of four, at a block's last step", *(Fault(batch=5, rank=r) for r in (0, 1, 3))),
    _bmuf("in the last, short block", Fault(batch=9, rank=2, value=INF)),
    _bmuf("an inf in a weight", Fault(batch=2, rank=3, where="weight", value=INF)),
    _bmuf("classical block momentum", NAN_GRADIENT, nesterov=False),
    _bmuf("across epochs", Fault(batch=6, rank=2), batches=4, epochs=3),
    _bmuf("a buffer", Fault(batch=4, rank=2, where="buffer", value=INF), net="batch_norm"),
    _overlapping("overlapping", NAN_GRADIENT),
    _overlapping("overlapping, twice", *(Fault(batch=b, rank=r) for b, r in [(4, 0), (7, 3)])),
    _averaging("model averaging", NAN_GRADIENT, Fault(batch=7, rank=1)),
    *(
        _two_tiers(f"a group by its {who}, {across}", Fault(batch=4, rank=rank), across=across)
        for across in ("leader", "sharded")
        for who, rank in (("first rank", 2), ("second rank", 3))
    ),
    *(
        _two_tiers(f"{kind} momentum", NAN_GRADIENT, across="leader", local_momentum=kind)
        for kind in ("keep", "average")
    ),
    *(
        _two_tiers(
            f"a weight of one rank, {across}",
            Fault(batch=5, rank=rank, where="weight"),
            across=across,
        )
        for across, rank in (("sharded", 2), ("leader", 3))
    ),
    _gtc("residuals", Fault(batch=4, rank=1)),
    _adam("Adam", NAN_GRADIENT),
    _adam("Adam, a second moment alone", Fault(batch=5, rank=2, where="exp_avg_sq", value=INF)),
    _adam("Adam, groups", Fault(batch=4, rank=3), group=2),
    _adam("NAdam", NAN_GRADIENT, rule=Rule(kind="nadam", lr=0.02, betas=(0.8, 0.999), psi=0.05)),
    _pair(),
]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
Runs = list[dict[str, tuple[Told, Told]]]


@pytest.fixture(scope="module")
def runs() -> Runs:
    """For each rank and case: with looks, and without."""
    return run_ranks(run_all, 4, CASES)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Told]]:
    """For each case what the twin's workers see."""
    return {case.name: twin_of(case) for case in CASES}


def _assert_close(own: Values, other: Values, what: str) -> None:
    """Where one is not finite the other must not be either."""
    for name, value in own.items():
        assert torch.equal(value.isfinite(), other[name].isfinite()), f"{what}: {name}"
    clean = [{n: v.nan_to_num(0.0, 0.0, 0.0) for n, v in one.items()} for one in (own, other)]
    assert difference(*clean) < TOLERANCE, what


@BY_NAME
def test_weights_and_moments_are_those_of_the_twin_after_every_batch(
    case: AnyCase, runs: Runs, expected: dict[str, list[Told]]
) -> None:
    for rank, own in enumerate(runs):
        (told, _), twin = own[case.name], expected[case.name][rank]
        assert len(told.local) == len(twin.local) == case.batches * case.epochs
        for batch, (mine, its) in enumerate(zip(told.local, twin.local, strict=True)):
            _assert_close(mine, its, f"rank {rank}, weights after batch {batch}")
        for batch, (mine, its) in enumerate(zip(told.moments, twin.moments, strict=False)):
            _assert_close(mine, its, f"rank {rank}, moments after batch {batch}")
        _assert_close(told.final, twin.final, f"rank {rank}, after fit")
        assert all(value.isfinite().all() for value in told.final.values())
        assert told.excluded == twin.excluded > 0 or case.name == "in the last, short block"


@BY_NAME
def test_looks_see_the_mean_of_the_healthy_and_change_nothing(
    case: AnyCase, runs: Runs, expected: dict[str, list[Told]]
) -> None:
    for rank, own in enumerate(runs):
        looking, blind = own[case.name]
        twin = expected[case.name][rank]
        for batch, (mine, its) in enumerate(zip(looking.validated, twin.validated, strict=True)):
            assert all(value.isfinite().all() for value in mine.values())
            _assert_close(mine, its, f"rank {rank}, seen after batch {batch}")
        assert not blind.validated
        assert identical(looking.final, blind.final)
        for one, other in zip(looking.local, blind.local, strict=True):
            assert all(torch.equal(v.nan_to_num(), other[n].nan_to_num()) for n, v in one.items())


def test_in_the_last_block_the_count_is_made_at_the_end(
    runs: Runs, expected: dict[str, list[Told]]
) -> None:
    """The twin's blocks do not end at the run's end."""
    name = "in the last, short block"
    assert expected[name][0].excluded == 0
    assert {own[name][0].excluded for own in runs} == {1}


def test_without_faults_both_settings_are_the_same() -> None:
    cases = [replace(case, faults=()) for case in CASES[:1]]
    strategies = [
        partial(BMUFStrategy, block_size=3, block_momentum=0.6, on_nonfinite=o, warmup_steps=0)
        for o in ("error", "exclude")
    ]
    cases = [replace(cases[0], name=str(i), strategy=s) for i, s in enumerate(strategies)]
    for own in run_ranks(run_all, 2, cases):
        assert identical(own["0"][0].final, own["1"][0].final)
        assert own["1"][0].excluded == 0
