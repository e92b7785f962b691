"""Ranks that run out of batches join the synchronisations of the others.

Models and step counts on two and four ranks equal those of float64 twins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import lightning_hier as lh
from tests.equivalence.adam_cases import AdamCase
from tests.equivalence.adam_twins import Rule
from tests.equivalence.cases import Case, case, difference, identical
from tests.equivalence.uneven import twin_joined
from tests.equivalence.watching import Seen, watch_all
from tests.ranks import run_ranks

TOLERANCE = 1e-10
JOIN: dict[str, Any] = {"uneven_batches": "join"}


def _case(name: str, counts: tuple[int, ...], group: int = 1, **settings: Any) -> Case:
    """A run of BMUF with tau = 3, in groups with exact gradients. Blocks continue across epochs."""
    blocks = {"block_size": 3, "block_momentum": 0.6, "block_lr": 0.9, "group_size": group}
    common = {"epochs": 3, "momentum": 0.5, "find_unused_parameters": True}
    return case(name, world=len(counts), counts=counts, **{**JOIN, **common, **blocks, **settings})


def _preset(name: str, strategy: Any, counts: tuple[int, ...], **settings: Any) -> Any:
    common = {"epochs": 3, "block_size": 3, **JOIN}
    return case(name, strategy, world=len(counts), counts=counts, **{**common, **settings})


def _averaging(counts: tuple[int, ...]) -> Case:
    return _preset(f"model averaging {counts}", lh.ModelAveragingStrategy, counts)


def _adam(moments: str) -> AdamCase:
    settings = {"kind": AdamCase, "rule": Rule(lr=0.02, betas=(0.8, 0.95))}
    own = {"moments": moments, "local_beta1": "keep"}
    return _preset(f"Adam, {moments}", lh.BMUFAdamStrategy, UNEVEN, **settings, **own)


UNEVEN = (7, 3, 9, 5)
PAIRS = [_averaging((5, 8)), _averaging((6, 4)), _case("last first", (1, 8))]
FOURS: list[Case] = [
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
def runs() -> dict[str, list[Seen]]:
    """Records of all ranks for each case."""
    records: dict[str, list[Seen]] = {}
    for cases in (PAIRS, FOURS):
        by_rank = run_ranks(watch_all, len(cases[0].counts), cases, looking=True)
        records |= {own.name: [rank[own.name] for rank in by_rank] for own in cases}
    return records


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_of_ranks_that_join_are_those_of_the_twin(
    case: Case, runs: dict[str, list[Seen]]
) -> None:
    first, *others = runs[case.name]
    for rank, (own, twin) in enumerate(zip(runs[case.name], twin_joined(case), strict=True)):
        assert len(own.local) == case.counts[rank] * case.epochs
        if case.accumulate == 1:
            for (batch, values), its in zip(own.local.items(), twin.local, strict=True):
                mine = {name: values[name] for name in its}
                assert difference(mine, its) < TOLERANCE, f"rank {rank}, batch {batch}"
        for records in (own.epoch_ends, own.validated):
            for seen, its in zip(records.values(), twin.epoch_ends, strict=True):
                assert difference(seen, its) < TOLERANCE
        assert difference(own.final, twin.epoch_ends[-1]) < TOLERANCE
        assert own.steps == twin.steps
    for other in others:
        assert identical(first.final, other.final)
        assert first.blocks == other.blocks


def test_number_of_batches_matters() -> None:
    """A twin with another number of batches on one rank has another final model."""
    bmuf = next(own for own in FOURS if own.name == "BMUF")
    shortest = replace(bmuf, counts=(7, 3, 9, 3))
    assert difference(*(twin_joined(own)[0].epoch_ends[-1] for own in (bmuf, shortest))) > 1e-3
