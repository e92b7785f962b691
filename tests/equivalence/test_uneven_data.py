"""Ranks that run out of batches join the others: against float64 twins, on two and four ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import lightning_hier as lh
from tests.equivalence.adam_twins import Rule
from tests.equivalence.cases import case, difference, identical
from tests.equivalence.uneven import AnyCase, Told, UnevenAdamCase, UnevenCase, run_all, twin_of
from tests.ranks import run_ranks

TOLERANCE = 1e-10
JOIN: dict[str, Any] = {"uneven_batches": "join"}


def _case(name: str, counts: tuple[int, ...], group: int = 1, **settings: Any) -> UnevenCase:
    """BMUF with tau = 3 in exact groups; blocks run on across epochs."""
    blocks = {"block_size": 3, "block_momentum": 0.6, "block_lr": 0.9, "group_size": group}
    common = {"kind": UnevenCase, "epochs": 3, "momentum": 0.5, "find_unused_parameters": True}
    return case(name, world=len(counts), counts=counts, **{**JOIN, **common, **blocks, **settings})


def _preset(name: str, strategy: Any, counts: tuple[int, ...], **settings: Any) -> Any:
    common = {"kind": UnevenCase, "epochs": 3, "block_size": 3, **JOIN}
    return case(name, strategy, world=len(counts), counts=counts, **{**common, **settings})


def _averaging(counts: tuple[int, ...]) -> UnevenCase:
    return _preset(f"model averaging {counts}", lh.ModelAveragingStrategy, counts)


def _adam(moments: str) -> UnevenAdamCase:
    settings = {"kind": UnevenAdamCase, "rule": Rule(lr=0.02, betas=(0.8, 0.95))}
    own = {"moments": moments, "local_beta1": "keep"}
    return _preset(f"Adam, {moments}", lh.BMUFAdamStrategy, UNEVEN, **settings, **own)


UNEVEN = (7, 3, 9, 5)
PAIRS = [_averaging((5, 8)), _averaging((6, 4)), _case("last first", (1, 8))]
FOURS: list[AnyCase] = [
    _case("BMUF", UNEVEN),
    _case("even", (5, 5, 5, 5)),
    _case("one block for all", UNEVEN, block_size=50),
    _case("a block a step", UNEVEN, block_size=1),
    _case("unknown lengths", UNEVEN, unknown=True),
    _case("averaged momentum", UNEVEN, local_momentum="average"),
    _case("BatchNorm", UNEVEN, net="batch_norm"),
    _case("accumulating", UNEVEN, accumulate=2),
    _case("warm-up that ends with the first rank", UNEVEN, warmup_steps=3),
    _case("groups, leader", (7, 7, 4, 4), 2, across="leader"),
    _case("groups, sharded", (4, 4, 7, 7), 2, across="sharded", net="batch_norm"),
    _case("two optimizers", (7, 7, 4, 4), 2, net="pair", block_size=2),
    _preset("GTC", lh.BMUFGTCStrategy, (4, 4, 7, 7), group_size=2, threshold=0.02, dense_below=0),
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
    bmuf = next(own for own in FOURS if own.name == "BMUF")
    shortest = replace(bmuf, counts=(7, 3, 9, 3))
    assert difference(twin_of(bmuf)[0].final, twin_of(shortest)[0].final) > 1e-3
