"""Groups that are weighted by the samples of their blocks, compared with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_hier import BMUF, BMUFAdam, HierarchicalStrategy, ModelAveraging
from lightning_hier.reference import Method
from tests.equivalence.cases import (
    Case,
    Values,
    case,
    check_final,
    difference,
    fragment_case,
    make_module,
    make_trainer,
    run_reference,
    state_of,
)
from tests.equivalence.tasks import Batch, batch_of, rank_number
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights

SAMPLES: dict[str, Any] = {"weighting": "samples"}
AUTO: dict[str, Any] = {"outer_momentum": "auto"}
SEEN: dict[str, Any] = {"trainer": {"val_check_interval": 1}}
_weighted: Any = partial(fragment_case, **SAMPLES)
_adam: Any = partial(
    case,
    sync=BMUFAdam,
    rule=partial(torch.optim.Adam, lr=0.02, betas=(0.5, 0.99)),
    **{"local_beta1": "keep", "block_size": 4, "batches": 15, **SAMPLES},
)
CASES: list[Case] = [
    _weighted("fragments, delay, merge", fragments=2, overlap=3, merge=0.5, **SEEN, **AUTO),
    _weighted("a merge that gives up steps", ModelAveraging, overlap=2, merge=0.0),
    _weighted("a delay of a block, groups", overlap=True, group=2, across="sharded", **AUTO),
    _weighted("BMUF in fragments", BMUF, fragments=2, block_lr=0.8, c=1.1, epochs=2, **SEEN),
    _weighted("BatchNorm, accumulation", BMUF, group=2, accumulate=2, batches=18, net="batch_norm"),
    # Each optimizer counts its own samples, and momentum is weighted as the model is.
    case("two optimizers", group_size=1, net="pair", block_size=2, batches=16, **SAMPLES),
    _weighted("averaged momentum", BMUF, local_momentum="average", block_size=3, batches=7),
    _adam("Adam", group_size=2),
    _adam("late moments", group_size=1, overlap=3, moments_every=2),
]


def _batch(own: Case, rank: int, number: int) -> Batch:
    """A batch whose size differs between groups and between batches."""
    group = rank // own.method.group
    return batch_of(rank, number, (2, 7, 4, 12)[group] + (number * (group + 1)) % 3)


def _fit_by_samples(cases: Sequence[Case]) -> dict[str, Values]:
    """Train the cases one after the other on this rank, and return their final states."""
    states = {}
    for own in cases:
        module = make_module(own, seed=rank_number())
        data: Any = [_batch(own, rank_number(), number) for number in range(own.batches)]
        validation: Any = DataLoader(data[:1], batch_size=None)
        make_trainer(own).fit(module, DataLoader(data, batch_size=None), validation)
        states[own.name] = state_of(module.net)
    return states


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(_fit_by_samples, 4, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Any, states: list[dict[str, Values]]) -> None:
    check_final(case, states, run_reference(case, partial(_batch, case)).global_model())


class Counted(Net):
    """A module whose batches have different numbers of samples on different ranks."""

    def batch_samples(self, batch: Any) -> int:
        return (1, 9, 3)[rank_number()]


def _still(batches: int) -> bool:
    """Whether a float32 model with a learning rate of 0 stays bit-equal."""
    sync = BMUF(block_size=1, weighting="samples", block_momentum=0.5)
    model = Counted(lr=0.0)
    before = weights(model).clone()
    fit(HierarchicalStrategy(group_size=1, block_sync=sync, warmup_steps=0), batches, model)
    return torch.equal(weights(model), before)


def test_rounded_weights_of_groups_do_not_change_a_model() -> None:
    """The sum of 1/13, 9/13 and 3/13 is not 1 in float32. Errors would add up over the blocks."""
    assert run_ranks(_still, 3, 20) == [True] * 3


_SENDS = [{}, {"across_dtype": "int8"}, {"across_density": 0.999}]


def test_blocks_of_a_step_are_steps_with_one_large_batch() -> None:
    """This includes quantised and sparse updates, which are added within a host."""
    settings: dict[str, Any] = {"block_size": 1, "momentum": 0.0}
    cases = [_weighted(str(own), ModelAveraging, **settings, **own) for own in _SENDS]

    def union(_: int, number: int) -> Batch:
        of_ranks = [_batch(cases[0], rank, number) for rank in range(4)]
        return Batch(*(torch.cat(parts) for parts in zip(*of_ranks, strict=True)))

    alone = replace(cases[0], world=1, method=Method(), by_samples=False)
    expected = run_reference(alone, union).global_model()
    [states, *_] = run_ranks(_fit_by_samples, 4, cases, ranks_per_node=2)
    exact, *others = states.values()
    assert difference(exact, expected) < 1e-12
    for rounded in others:
        assert difference(rounded, expected) < 2e-3
