"""Sparse updates on four ranks under a Trainer: final models equal float64 twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hier import BMUF, ModelAveraging
from tests.equivalence.cases import difference, fit_all, fit_in_chunks, identical, run_twin
from tests.equivalence.sparse_twins import Cut, sparse_case, sparse_fragment_case
from tests.equivalence.twins import Values
from tests.ranks import run_ranks

_SEEN = {"trainer": {"val_check_interval": 1}}

CASES: list[Any] = [
    sparse_case("a quarter", 0.25),
    sparse_case("2%", 0.02, run={"net": "wide", "batches": 20}),
    sparse_case("averages", 0.1, sync=ModelAveraging),
    sparse_case("classical block momentum", 0.1, nesterov=False, block_momentum=0.6, block_lr=0.9),
    sparse_case("seen at every batch", 0.1, run=_SEEN),
    sparse_case("groups of two, leaders", 0.1, group=2, across="leader"),
    sparse_case("groups of two, shards", 0.1, group=2, across="sharded", run={"shards": 2}),
    sparse_case("BatchNorm", 0.1, run={"net": "batch_norm"}),
    sparse_case("two optimizers", 0.1, block_size=2, run={"net": "pair", "batches": 16}),
    sparse_case("blocks across epochs", 0.1, run={"batches": 4, "epochs": 3}),
    sparse_case("overlapping", 0.1, overlap=True),
    sparse_case("overlapping, seen", 0.1, overlap=True, run={**_SEEN, "net": "batch_norm"}),
]
IN_FRAGMENTS: list[Any] = [
    sparse_fragment_case("two fragments", 0.2, fragments=2, run=_SEEN),
    sparse_fragment_case("a delay of half a block", 0.2, sync=BMUF, overlap=2, run=_SEEN),
    sparse_fragment_case("Streaming DiLoCo", 0.2, fragments=2, overlap=3, merge=0.5, run=_SEEN),
    sparse_fragment_case("three, groups", 0.2, fragments=3, overlap=1, group=2, across="leader"),
]
IN_PIECES: list[Any] = [
    sparse_case("hosts", 0.2, run={"together": 2}),
    sparse_case("hosts, overlapping", 0.2, overlap=True, run={"together": 2}),
    sparse_case("pieces", 0.2, run={"piece": 14, "together": 2}),
    sparse_case("pieces, BatchNorm", 0.2, run={"piece": 14, "together": 2, "net": "batch_norm"}),
    sparse_case("pieces, overlapping", 0.2, overlap=True, run={"piece": 14, "together": 2}),
]
# All elements are sent, so that the result only differs by the order of additions.
ALL = sparse_case("everything", 0.9999)


def _on_hosts() -> dict[str, Values]:
    whole, pieces = (
        [own for own in IN_PIECES if (own.cut.piece is None) == is_whole]
        for is_whole in (True, False)
    )
    # Chunks of updates are twice as long as those of models.
    return fit_all(whole) | fit_in_chunks(pieces, 7)


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_all, 4, [*CASES, *IN_FRAGMENTS, ALL])


@pytest.fixture(scope="module")
def states_on_hosts() -> list[dict[str, Values]]:
    """Final states of every rank, on two hosts of two ranks."""
    return run_ranks(_on_hosts, 4, ranks_per_node=2)


@pytest.mark.parametrize("case", [*CASES, *IN_FRAGMENTS, ALL], ids=lambda case: case.name)
def test_final_model_is_that_of_the_twin(case: Any, states: list[dict[str, Values]]) -> None:
    _compare(case, states)


@pytest.mark.parametrize("case", IN_PIECES, ids=lambda case: case.name)
def test_hosts_send_the_largest_of_their_sum(
    case: Any, states_on_hosts: list[dict[str, Values]]
) -> None:
    _compare(case, states_on_hosts)


def _compare(case: Any, states: list[dict[str, Values]]) -> None:
    assert difference(states[0][case.name], run_twin(case).global_model()) < 1e-10
    for rank in (1, 2, 3):
        assert identical(states[rank][case.name], states[0][case.name]), f"rank {rank}"


def test_evaluation_changes_nothing(states: list[dict[str, Values]]) -> None:
    plain = replace(CASES[4], name="plain", trainer={})
    plain_states = run_ranks(fit_all, 4, [plain])
    assert identical(states[0]["seen at every batch"], plain_states[0]["plain"])


def test_sending_everything_is_sending_the_models(states: list[dict[str, Values]]) -> None:
    dense = replace(ALL, cut=Cut(density=1.0))
    assert difference(states[0]["everything"], run_twin(dense).global_model()) < 1e-10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_density_matters(case: Any) -> None:
    """A twin that sends whole updates has another final model."""
    dense = replace(case, cut=replace(case.cut, density=1.0))
    assert difference(run_twin(dense).global_model(), run_twin(case).global_model()) > 1e-6
