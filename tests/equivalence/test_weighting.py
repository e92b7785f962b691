"""Groups that are weighted by the samples of their blocks, compared with float64 twins."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from lightning_hier import BMUF, BMUFAdam, DiLoCo, HierarchicalStrategy, ModelAveraging
from tests.equivalence.adam_twins import Rule
from tests.equivalence.cases import difference, identical, make_twin, state_of, train_batch
from tests.equivalence.tasks import Batch, loss_on, make_net, rank_number
from tests.equivalence.twins import Values
from tests.equivalence.weighted_twins import (
    BlocksCase,
    WeightedAdamCase,
    batch,
    blocks_case,
    fit_by_samples,
    run_by_samples,
    weighted,
)
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights

_ADAM: dict[str, Any] = {
    "kind": WeightedAdamCase, "sync": BMUFAdam, "rule": Rule(lr=0.02, betas=(0.5, 0.99)),
    "local_beta1": "keep", "block_size": 4, "batches": 15,
}  # fmt: skip
_SGD: dict[str, Any] = {"kind": BlocksCase, "sync": BMUF}
BLOCKS: list[Any] = [
    blocks_case("two optimizers", **_SGD, net="pair", block_size=2, batches=20),
    blocks_case("averaged momentum", **_SGD, local_momentum="average", momentum=0.8, block_size=3),
]

AUTO: dict[str, Any] = {"outer_momentum": "auto"}
SEEN = {"trainer": {"val_check_interval": 1}}
CASES: list[Any] = [
    weighted("fragments", DiLoCo, fragments=2, outer_lr=1.0, run=SEEN, **AUTO),
    weighted(
        "fragments, delay, merge", DiLoCo, fragments=2, overlap=3, merge=0.5, run=SEEN, **AUTO
    ),
    weighted("a merge that gives up steps", ModelAveraging, overlap=2, merge=0.0, run=SEEN),
    weighted("a delay of a block, groups", DiLoCo, overlap=True, group=2, across="sharded", **AUTO),
    weighted("averages in fragments", ModelAveraging, local_momentum="keep", fragments=3),
    weighted("BMUF, BatchNorm", BMUF, run={"net": "batch_norm"}),
    weighted(
        "BMUF in fragments", BMUF, fragments=2, block_lr=0.8, c=1.1, run={**SEEN, "epochs": 2}
    ),
    weighted("a delay, BatchNorm", BMUF, fragments=2, overlap=2, run={"net": "batch_norm", **SEEN}),
    weighted("BMUF, groups, accumulation", BMUF, group=2, run={"accumulate": 2, "batches": 22}),
    blocks_case("Adam", **_ADAM),
    blocks_case("moments every second block", **_ADAM, group_size=2, moments_every=2),
    blocks_case("late moments", **_ADAM, overlap=3, moments_every=2),
]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_by_samples, 4, [*CASES, *BLOCKS])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_twin(case: Any, states: list[dict[str, Values]]) -> None:
    expected = run_by_samples(case).global_model()
    assert difference(states[0][case.name], expected) < 1e-10
    for rank in (1, 2, 3):
        assert identical(states[rank][case.name], states[0][case.name]), f"rank {rank}"


@pytest.mark.parametrize("case", BLOCKS, ids=lambda case: case.name)
def test_momentum_and_optimizers(case: Any, states: list[dict[str, Values]]) -> None:
    """Momentum is weighted as the model is, and each optimizer counts its own samples."""
    twin: Any = make_twin(case)
    for number in range(case.batches):
        twin.count([len(batch(case, rank, number).x) for rank in range(4)])
        train_batch(case, twin, number, batch_of=partial(batch, case))
    for state in states:
        assert difference(state[case.name], twin.global_model()) < 1e-10


class Counted(Net):
    """A module whose batches have different numbers of samples on different ranks."""

    def batch_samples(self, batch: Any) -> int:
        return (1, 9, 3)[rank_number()]


def _plain_loop(own: Any, world: int) -> Values:
    """SGD on the union of the batches of all groups."""
    net = make_net(own.net)
    optimizer = torch.optim.SGD(net.parameters(), lr=own.lr)
    for number in range(own.batches):
        of_ranks = [batch(own, rank, number) for rank in range(world)]
        union = Batch(*(torch.cat(parts) for parts in zip(*of_ranks, strict=True)))
        optimizer.zero_grad()
        loss_on(union)(net).backward()
        optimizer.step()
    return state_of(net)


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


@pytest.mark.parametrize(("world", "group"), [(2, 1), (4, 1), (4, 2)])
def test_blocks_of_a_step_are_steps_with_one_large_batch(world: int, group: int) -> None:
    """This includes quantised and sparse updates, which are added within a host."""
    settings: dict[str, Any] = {"group": group, "block_size": 1, "run": {"momentum": 0.0}}
    cases = [weighted(str(own), ModelAveraging, **settings, **own) for own in _SENDS]
    expected = _plain_loop(cases[0], world)
    [exact, *others] = run_ranks(fit_by_samples, world, cases, ranks_per_node=world // 2)[
        0
    ].values()
    assert difference(exact, expected) < 1e-12
    for rounded in others:
        assert difference(rounded, expected) < 2e-3
