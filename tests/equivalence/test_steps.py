"""The models that learning-rate schedulers see after each step."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hier import BMUFStrategy, ModelAveragingStrategy
from tests.equivalence.cases import (
    Case,
    case,
    difference,
    make_reference,
    parameters_of,
    train_batch,
)
from tests.equivalence.watching import Seen, watch_all
from tests.ranks import run_ranks


def _ma(name: str, tau: int, **settings: Any) -> Case:
    return case(name, ModelAveragingStrategy, block_size=tau, **settings)


CASES = [
    case(
        "blocks run on across epochs",
        BMUFStrategy,
        block_size=3,
        block_momentum=0.6,
        batches=4,
        epochs=3,
    ),
    _ma("after the warm-up", 3, warmup_steps=2, batches=9),
    # Steps after batches 2, 4, 6, 8.
    _ma("accumulating", 2, batches=8, accumulate=2),
]


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Seen]]:
    """Records of every rank, with the models that schedulers see."""
    return run_ranks(watch_all, 4, CASES, scheduled=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_schedulers_see_what_training_goes_on_with(case: Case, seen: list[dict[str, Seen]]) -> None:
    """Schedulers step after the synchronisation, and so see the start model of the next block."""
    for rank, own in enumerate(seen):
        scheduled = own[case.name].scheduled
        assert len(scheduled) == case.epochs * case.batches // case.accumulate
        reference, steps = make_reference(case), iter(scheduled)
        for number in range(case.epochs * case.batches):
            train_batch(case, reference, number)
            if (number + 1) % case.accumulate == 0:
                assert difference(next(steps), parameters_of(reference.workers[rank])) < 1e-10
