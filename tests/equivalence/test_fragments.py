"""Fragments, delays and merges on four ranks under a Trainer, compared with the reference."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hier import BMUF, ModelAveraging
from lightning_hier.comm.blocks.schedule import Schedule
from tests.equivalence.cases import (
    Values,
    difference,
    fit_in_chunks,
    fragment_case,
    identical,
    run_reference,
)
from tests.ranks import run_ranks

_SEEN: dict[str, Any] = {"trainer": {"val_check_interval": 1}}

CASES: list[Any] = [
    fragment_case("two fragments", fragments=2),
    fragment_case("a fragment each step", fragments=4),
    fragment_case("a block that they don't divide", block_size=5, fragments=3),
    fragment_case("more fragments than tensors", block_size=7, fragments=7),
    fragment_case("of BMUF", BMUF, fragments=2),
    fragment_case("of averages, sharded", ModelAveraging, group=2, fragments=2, across="sharded"),
    fragment_case("seen at every batch", fragments=3, **_SEEN),
    fragment_case("BatchNorm", BMUF, group=2, fragments=2, net="batch_norm"),
    fragment_case("a delay of a step", overlap=1),
    fragment_case("half a block", BMUF, overlap=2, **_SEEN),
    fragment_case("a block", overlap=4, **_SEEN),
    fragment_case("a block, which is True", BMUF, overlap=True),
    fragment_case("half a block, groups, leaders", group=2, overlap=2, across="leader"),
    fragment_case("fragments and a step", fragments=2, overlap=1, **_SEEN),
    fragment_case("fragments and half a block", BMUF, fragments=2, overlap=2, **_SEEN),
    fragment_case("one group, which is not averaged", group=4, fragments=2, overlap=3),
    fragment_case("fragments and more", group=2, fragments=4, overlap=3, across="sharded"),
    fragment_case("fragments and a block", fragments=2, overlap=True, **_SEEN),
    fragment_case("BatchNorm and a delay", BMUF, fragments=2, overlap=3, net="batch_norm"),
    *(
        fragment_case(f"merge {merge}, delay {delay}", overlap=delay, merge=merge, **_SEEN)
        for merge in (0.0, 0.5, 1.0)
        for delay in (1, 2, 4)
        if merge or delay < 4
    ),
    fragment_case("Streaming DiLoCo", block_size=5, fragments=2, overlap=2, merge=0.5),
    fragment_case("merge with look-ahead", BMUF, fragments=2, overlap=3, merge=0.3, **_SEEN),
    fragment_case("blocks across epochs", fragments=2, overlap=3, batches=5, epochs=3),
    fragment_case("accumulation", fragments=2, overlap=1, accumulate=2, batches=22),
]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_in_chunks, 4, CASES, 7)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Any, states: list[dict[str, Values]]) -> None:
    expected = run_reference(case).global_model()
    assert difference(states[0][case.name], expected) < 1e-10
    for rank in (1, 2, 3):
        assert identical(states[rank][case.name], states[0][case.name]), f"rank {rank}"


@pytest.mark.parametrize("merge", [0.0, 0.5, 1.0, "progress"])
def test_merge_matters(merge: Any) -> None:
    """With different merges, the reference has different final models."""
    model = run_reference(fragment_case("", overlap=2, merge=merge)).global_model()
    for other in {0.0, 0.5, 1.0, "progress"} - {merge}:
        other_model = run_reference(fragment_case("", overlap=2, merge=other)).global_model()
        assert difference(model, other_model) > 1e-6


def test_schedule_of_a_block() -> None:
    """Updates are applied at the steps of the documentation, and sent ``delay`` steps before.

    The send of a fragment may be in the block before.
    """
    at = [tuple(Schedule(10, fragments=3, delay=4).due(step)) for step in range(1, 11)]
    assert at == [
        (None, None), (None, 1), (0, None), (None, None), (None, None),
        (1, 2), (None, None), (None, None), (None, 0), (2, None),
    ]  # fmt: skip
    for delay in (0, 10):
        own = [Schedule(10, fragments=3, delay=delay).due(step) for step in range(1, 11)]
        assert [due.applies for due in own] == [due.sends for due in own]
    assert Schedule(10).due(13) == (0, 0)


@pytest.mark.parametrize("n", [1, 2, 7, 10])
@pytest.mark.parametrize("delay", [0, 1, 5, 10])
def test_every_fragment_is_sent_and_applied_once_in_a_block(n: int, delay: int) -> None:
    due = [Schedule(10, fragments=n, delay=delay).due(step) for step in range(1, 11)]
    for kind in ("applies", "sends"):
        fragments = [getattr(own, kind) for own in due]
        assert sorted(own for own in fragments if own is not None) == list(range(n))
