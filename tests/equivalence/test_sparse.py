"""Sparse updates on four ranks under a Trainer: final models equal the reference's."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hier import BMUF, DiLoCo, ModelAveraging
from tests.equivalence.cases import (
    Case,
    Values,
    check_final,
    difference,
    fit_all,
    fit_in_chunks,
    fragment_case,
    identical,
    run_reference,
)
from tests.ranks import run_ranks

_SEEN: dict[str, Any] = {"trainer": {"val_check_interval": 1}}


def _largest(u: Tensor, density: float, shards: int, piece: int | None) -> Tensor:
    """The largest elements of each piece of each of so many equal shards. The rest is zero."""
    sent = torch.zeros_like(u)
    each = -(-len(u) // shards)
    for shard, out in zip(u.split(each), sent.split(each), strict=True):
        for own, place in zip(shard.split(piece or each), out.split(piece or each), strict=True):
            most = own.abs().topk(math.ceil(density * len(own))).indices
            place[most] = own[most]
    return sent


def _case(
    name: str,
    density: float,
    *,
    shards: int = 1,
    piece: int | None = None,
    together: int = 1,
    sync: Any = BMUF,
    **settings: Any,
) -> Case:
    """A run whose groups send the largest elements of their updates.

    Args:
        name: name in the test report.
        density: share of the elements of a piece that is sent.
        shards: number of ranks of a group that send.
        piece: number of elements from which the largest are selected. None is a whole shard.
        together: number of groups whose updates are added before they are sent.
        sync: class of the block synchronisation.
        settings: as for `fragment_case`, with blocks of three steps.

    """
    own = fragment_case(name, sync, **{"block_size": 3, "across_density": density, **settings})
    codec = partial(_largest, density=density, shards=shards, piece=piece)
    return replace(own, method=replace(own.method, codec=codec, groups_per_host=together))


def _dense(own: Case) -> Case:
    return replace(own, method=replace(own.method, codec=torch.clone))


CASES: list[Any] = [
    _case("a quarter", 0.25),
    _case("2%", 0.02, net="wide", batches=20),
    _case("averages", 0.1, sync=ModelAveraging),
    _case("classical block momentum", 0.1, nesterov=False, block_momentum=0.6, block_lr=0.9),
    _case("seen at every batch", 0.1, **_SEEN),
    _case("groups of two, leaders", 0.1, group=2, across="leader"),
    _case("groups of two, shards", 0.1, group=2, across="sharded", shards=2),
    _case("BatchNorm", 0.1, net="batch_norm"),
    _case("two optimizers", 0.1, block_size=2, net="pair", batches=16),
    _case("blocks across epochs", 0.1, batches=4, epochs=3),
    _case("overlapping", 0.1, overlap=True),
    _case("overlapping, seen", 0.1, overlap=True, **_SEEN, net="batch_norm"),
]
IN_FRAGMENTS: list[Any] = [
    _case("two fragments", 0.2, sync=DiLoCo, block_size=4, fragments=2, **_SEEN),
    _case("a delay of half a block", 0.2, block_size=4, overlap=2, **_SEEN),
    _case("Streaming", 0.2, sync=DiLoCo, block_size=4, fragments=2, overlap=3, merge=0.5, **_SEEN),
    _case(
        "groups", 0.2, sync=DiLoCo, block_size=4, fragments=3, overlap=1, group=2, across="leader"
    ),
]
IN_PIECES: list[Any] = [
    _case("hosts", 0.2, together=2),
    _case("hosts, overlapping", 0.2, overlap=True, together=2),
    _case("pieces", 0.2, piece=14, together=2),
    _case("pieces, BatchNorm", 0.2, piece=14, together=2, net="batch_norm"),
    _case("pieces, overlapping", 0.2, overlap=True, piece=14, together=2),
]
PLAIN = replace(CASES[4], name="plain", trainer={})
# All elements are sent, so that the result only differs by the order of additions.
ALL = _case("everything", 0.9999)


def _on_hosts() -> dict[str, Values]:
    whole, pieces = (
        [own for own in IN_PIECES if (own.method.codec.keywords["piece"] is None) == is_whole]
        for is_whole in (True, False)
    )
    # Chunks of updates are twice as long as those of models.
    return fit_all(whole) | fit_in_chunks(pieces, 7)


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_all, 4, [*CASES, *IN_FRAGMENTS, PLAIN, ALL])


@pytest.fixture(scope="module")
def states_on_hosts() -> list[dict[str, Values]]:
    """Final states of every rank, on two hosts of two ranks."""
    return run_ranks(_on_hosts, 4, ranks_per_node=2)


@pytest.mark.parametrize("case", [*CASES, *IN_FRAGMENTS, ALL], ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Any, states: list[dict[str, Values]]) -> None:
    check_final(case, states, run_reference(case).global_model())


@pytest.mark.parametrize("case", IN_PIECES, ids=lambda case: case.name)
def test_hosts_send_the_largest_of_their_sum(
    case: Any, states_on_hosts: list[dict[str, Values]]
) -> None:
    check_final(case, states_on_hosts, run_reference(case).global_model())


def test_evaluation_changes_nothing(states: list[dict[str, Values]]) -> None:
    assert identical(states[0]["seen at every batch"], states[0]["plain"])


def test_sending_everything_is_sending_the_models(states: list[dict[str, Values]]) -> None:
    expected = run_reference(_dense(ALL)).global_model()
    assert difference(states[0]["everything"], expected) < 1e-10


def test_density_matters() -> None:
    """A reference that sends whole updates has another final model."""
    models = [run_reference(own).global_model() for own in (_dense(CASES[0]), CASES[0])]
    assert difference(*models) > 1e-6
