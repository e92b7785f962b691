"""Groups that diverge are excluded from the mean without an effect on the others.

Weights, moments and evaluated models on four ranks equal those of float64 twins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lightning_hier import (
    BMUFAdam,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    ModelAveragingStrategy,
)
from tests.equivalence.adam_cases import AdamCase
from tests.equivalence.adam_twins import Rule
from tests.equivalence.cases import Case, case, changed, difference, identical
from tests.equivalence.faults import Fault
from tests.equivalence.twins import Values
from tests.equivalence.watching import Seen, twin_seen, watch_both
from tests.ranks import run_ranks

TOLERANCE = 1e-10
INF = float("inf")
OFTEN = {"val_check_interval": 1}


def _case(name: str, *faults: Fault, **settings: Any) -> Any:
    """A run with faults, by default with every rank as a group.

    Excluded groups do not change eta.
    """
    common = {"block_size": 3, "batches": 10, "on_nonfinite": "exclude", "trainer": OFTEN}
    return case(name, **{**common, "faults": faults, **settings})


def _bmuf(name: str, *faults: Fault, **settings: Any) -> Case:
    blocks = {"strategy": BMUFStrategy, "block_momentum": 0.6, "block_lr": 0.9, "momentum": 0.5}
    return _case(name, *faults, **{**blocks, **settings})


def _two_tiers(name: str, *faults: Fault, **settings: Any) -> Case:
    return _case(name, *faults, group_size=2, momentum=0.5, **settings)


def _adam(name: str, *faults: Fault, rule: Rule | None = None, **settings: Any) -> AdamCase:
    rule = rule or Rule(lr=0.02, betas=(0.8, 0.95))
    common = {"kind": AdamCase, "sync": BMUFAdam, "rule": rule, "local_beta1": "keep"}
    return _case(name, *faults, **common, **settings)


NAN_GRADIENT = Fault(batch=1, rank=1)
CASES: list[Case] = [
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
    _bmuf("overlapping", NAN_GRADIENT, overlap=True),
    _bmuf(
        "overlapping, twice", *(Fault(batch=b, rank=r) for b, r in [(4, 0), (7, 3)]), overlap=True
    ),
    _case("model averaging", NAN_GRADIENT, Fault(batch=7, rank=1), strategy=ModelAveragingStrategy),
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
    _case(
        "residuals",
        Fault(batch=4, rank=1),
        strategy=BMUFGTCStrategy,
        group_size=2,
        threshold=0.02,
        dense_below=0,
    ),
    _adam("Adam", NAN_GRADIENT, strategy=BMUFAdamStrategy),
    _adam(
        "Adam, a second moment alone",
        Fault(batch=5, rank=2, where="exp_avg_sq", value=INF),
        strategy=BMUFAdamStrategy,
    ),
    _adam("Adam, groups", Fault(batch=4, rank=3), group_size=2, across="sharded"),
    _adam(
        "NAdam",
        NAN_GRADIENT,
        rule=Rule(kind="nadam", lr=0.02, betas=(0.8, 0.999), psi=0.05),
        strategy=BMUFAdamStrategy,
    ),
    # On one rank, parameters of the second optimizer are not finite. Those of the first are.
    _case(
        "two optimizers",
        Fault(batch=4, rank=2, where="weight"),
        group_size=2,
        block_size=2,
        block_momentum=0.6,
        find_unused_parameters=True,
        net="pair",
        batches=12,
    ),
]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
Runs = list[dict[str, tuple[Seen, Seen]]]


@pytest.fixture(scope="module")
def runs() -> Runs:
    """Records of every rank and case: with validation and saves, and without."""
    return run_ranks(watch_both, 4, CASES)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Seen]]:
    """Records of the twin's workers for each case."""
    return {own.name: twin_seen(own, looking=True) for own in CASES}


def _assert_close(own: Values, expected: Values, what: str) -> None:
    """Compare values. The same elements must not be finite."""
    for name, value in expected.items():
        assert torch.equal(value.isfinite(), own[name].isfinite()), f"{what}: {name}"
    clean = [
        {name: one[name].nan_to_num(0.0, 0.0, 0.0) for name in expected} for one in (own, expected)
    ]
    assert difference(*clean) < TOLERANCE, what


@BY_NAME
def test_weights_and_moments_are_those_of_the_twin_after_every_batch(
    case: Case, runs: Runs, expected: dict[str, list[Seen]]
) -> None:
    for rank, own in enumerate(runs):
        (seen, _), twin = own[case.name], expected[case.name][rank]
        assert len(seen.local) == len(twin.local) == case.batches * case.epochs
        for batch, its in twin.local.items():
            _assert_close(seen.local[batch], its, f"rank {rank}, weights after batch {batch}")
            for kind in ("exp_avg", "exp_avg_sq") if twin.moments[batch] else ():
                mine, moments = seen.moments[batch][kind], twin.moments[batch][kind]
                _assert_close(mine, moments, f"rank {rank}, moments after batch {batch}")
        _assert_close(seen.final, twin.final, f"rank {rank}, after fit")
        assert all(value.isfinite().all() for value in seen.final.values())
        assert seen.excluded == twin.excluded > 0 or case.name == "in the last, short block"


@BY_NAME
def test_evaluation_uses_the_mean_of_finite_groups_and_changes_nothing(
    case: Case, runs: Runs, expected: dict[str, list[Seen]]
) -> None:
    for rank, own in enumerate(runs):
        evaluated, plain = own[case.name]
        twin = expected[case.name][rank]
        assert evaluated.validated.keys() == twin.validated.keys()
        for batch, seen in evaluated.validated.items():
            assert all(value.isfinite().all() for value in seen.values())
            _assert_close(seen, twin.validated[batch], f"rank {rank}, seen after batch {batch}")
        assert not plain.validated
        assert identical(evaluated.final, plain.final)
        for batch, local in evaluated.local.items():
            other = plain.local[batch]
            assert all(torch.equal(v.nan_to_num(), other[n].nan_to_num()) for n, v in local.items())


def test_a_group_is_excluded_at_the_end_of_the_run(
    runs: Runs, expected: dict[str, list[Seen]]
) -> None:
    """The end of the run also ends the last block. It does not end the twin's block."""
    name = "in the last, short block"
    assert expected[name][0].excluded == 0
    assert {own[name][0].excluded for own in runs} == {1}


def test_without_faults_both_settings_are_the_same() -> None:
    cases = [changed(CASES[0], own, on_nonfinite=own) for own in ("error", "exclude")]
    cases = [replace(one, faults=()) for one in cases]
    for own in run_ranks(watch_both, 4, cases):
        assert identical(own["error"][0].final, own["exclude"][0].final)
        assert own["exclude"][0].excluded == 0
