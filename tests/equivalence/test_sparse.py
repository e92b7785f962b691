"""Sparse updates on four ranks under a Trainer: final models equal the reference's."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hier import BMUF, DiLoCo
from tests.equivalence.cases import (
    Case,
    Values,
    check_final,
    fit_all,
    fragment_case,
    in_chunks,
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


CASES: list[Any] = [
    _case("2%", 0.02, net="wide"),
    _case("groups of two, leaders", 0.1, group=2, across="leader"),
    _case("groups of two, shards", 0.1, group=2, across="sharded", shards=2),
    _case("overlapping, seen", 0.1, overlap=True, net="batch_norm", **_SEEN),
    _case("Streaming", 0.2, sync=DiLoCo, block_size=4, fragments=2, overlap=3, merge=0.5),
]
ON_HOSTS: list[Any] = [
    _case("pieces", 0.2, piece=14, together=2),
    _case("overlapping", 0.2, overlap=True, piece=14, together=2, net="batch_norm"),
]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_all, 4, CASES)


@pytest.fixture(scope="module")
def states_on_hosts() -> list[dict[str, Values]]:
    """Final states of every rank, on two hosts of two ranks."""
    # Chunks of updates are twice as long as those of models.
    return run_ranks(in_chunks, 4, fit_all, ON_HOSTS, 7, ranks_per_node=2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Any, states: list[dict[str, Values]]) -> None:
    check_final(case, states, run_reference(case).global_model())


@pytest.mark.parametrize("case", ON_HOSTS, ids=lambda case: case.name)
def test_hosts_send_the_largest_of_their_sum(
    case: Any, states_on_hosts: list[dict[str, Values]]
) -> None:
    check_final(case, states_on_hosts, run_reference(case).global_model())
