"""The exact steps after which models are synchronised, and the models that schedulers see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lightning_hier import BMUFStrategy, ModelAveragingStrategy
from tests.equivalence.cases import (
    Case,
    case,
    difference,
    make_reference,
    parameters_of,
    train_batch,
)
from tests.equivalence.tasks import make_net
from tests.equivalence.watching import Seen, watch_all
from tests.ranks import run_ranks


@dataclass(frozen=True)
class Expected:
    """A run, and the batches after which the groups' models are equal.

    Attributes:
        case: the run.
        equal: numbers of these batches, counted through all epochs.
        part: prefix of the parameters that are compared.

    """

    case: Case
    equal: frozenset[int]
    part: str = ""


def _ma(name: str, tau: int, **settings: Any) -> Case:
    return case(name, ModelAveragingStrategy, block_size=tau, **settings)


PAIR = case(
    "two optimizers",
    group_size=2,
    threshold=0.02,
    block_size=2,
    block_momentum=0.5,
    find_unused_parameters=True,
    net="pair",
    batches=12,
)
ACROSS_EPOCHS = case(
    "blocks run on across epochs",
    BMUFStrategy,
    block_size=3,
    block_momentum=0.6,
    batches=4,
    epochs=3,
)
RUNS = [
    Expected(_ma("every third", 3), frozenset({3, 6})),
    Expected(ACROSS_EPOCHS, frozenset({3, 6, 9, 12})),
    Expected(_ma("after the warm-up", 3, warmup_steps=2, batches=9), frozenset({1, 2, 5, 8})),
    Expected(_ma("warm-up of one", 2, warmup_steps=1), frozenset({1, 3, 5, 7})),
    # Steps after batches 2, 4, 6, 8. Before the first one, all models are the initial one.
    Expected(_ma("accumulating", 2, batches=8, accumulate=2), frozenset({1, 4, 5, 8})),
    # The last batch of an epoch also makes a step: after 2, 4, 6, 8, 9, 11, 13, 15, 17, 18.
    Expected(
        _ma("accumulating, short", 5, batches=9, accumulate=2, epochs=2), frozenset({1, 9, 10, 18})
    ),
    Expected(PAIR, frozenset({2, 4, 6, 8, 10, 12}), part="a."),
    # Optimizer b steps after batches 3, 6, 9, 12.
    Expected(PAIR, frozenset({1, 2, 6, 7, 8, 12}), part="b."),
]
CASES = list({run.case.name: run.case for run in RUNS}.values())


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Seen]]:
    """Records of every rank, with the models that schedulers see."""
    return run_ranks(watch_all, 4, CASES, scheduled=True)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.case.name} {run.part}")
def test_models_are_equal_after_these_batches(run: Expected, seen: list[dict[str, Seen]]) -> None:
    first, last = seen[0][run.case.name].local, seen[3][run.case.name].local
    names = [n for n, _ in make_net(run.case.net).named_parameters() if n.startswith(run.part)]
    equal = {
        count
        for count in first
        if all(torch.equal(first[count][name], last[count][name]) for name in names)
    }
    assert len(first) == run.case.batches * run.case.epochs
    assert equal == run.equal


@pytest.mark.parametrize(
    "name", ["every third", "blocks run on across epochs", "accumulating", "after the warm-up"]
)
def test_schedulers_see_what_training_goes_on_with(name: str, seen: list[dict[str, Seen]]) -> None:
    """Schedulers step after the synchronisation, and so see the start model of the next block."""
    case = next(own for own in CASES if own.name == name)
    for rank, own in enumerate(seen):
        scheduled = own[name].scheduled
        assert len(scheduled) == case.epochs * case.batches // case.accumulate
        reference, steps = make_reference(case), iter(scheduled)
        for number in range(case.epochs * case.batches):
            train_batch(case, reference, number)
            if (number + 1) % case.accumulate == 0:
                assert difference(next(steps), parameters_of(reference.workers[rank])) < 1e-10
