"""BMUF-Adam on four ranks under a Trainer: weights, moments and counts equal the reference's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import Adam, AdamW, NAdam, RAdam

from lightning_hier import BMUFAdam, BMUFAdamStrategy
from tests.equivalence.cases import Case, case, identical
from tests.equivalence.watching import Seen, assert_like_reference, reference_seen, watch_all
from tests.ranks import run_ranks

# Tolerance for counts in float32, which have a relative precision of 6e-8. Fused kernels only take
# such step counts, and NAdam stores its mu_product in float32 until the first block begins.
FLOAT32_COUNTS = 1e-7
THRESHOLD = 0.02
# The first batch in which no rank uses the branch of "partly_used" that some batches use.
UNUSED_BY_ALL = 6
FAST = partial(Adam, lr=0.02, betas=(0.5, 0.99))
# A bias in front of a BatchNorm has no effect, so that its gradient is only rounding. With this
# eps, its steps are small.
WITH_BATCH_NORM = {"net": "batch_norm", "rule": partial(FAST, eps=1e-3)}
ROUNDING = ("0.bias", "a.0.bias")


def _case(name: str, rule: Any = FAST, **settings: Any) -> Case:
    """A run in which every rank is a group. With 7 batches, the last block of 3 steps has one."""
    blocks = {"block_size": 3, "block_momentum": 0.6, "local_beta1": "keep"}
    return case(name, BMUFAdamStrategy, rule=rule, **{**blocks, **settings})


def _tiers(name: str, group: int, **settings: Any) -> Case:
    """A run in groups, with GTC if a threshold is given."""
    blocks = {"group_size": group, "block_size": 2, "across": "leader", "local_beta1": "keep"}
    gtc = {"dense_below": 10} if "threshold" in settings else {}
    common = {"sync": BMUFAdam, "rule": FAST, "find_unused_parameters": True}
    return case(name, **{**common, **blocks, **gtc, **settings})


ADAMW = partial(AdamW, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)
NADAM = partial(NAdam, lr=0.02, betas=(0.8, 0.999), momentum_decay=0.05)
RADAM = partial(RAdam, lr=0.02, betas=(0.9, 0.98))
FUSED = {"options": {"fused": True}, "tolerance": FLOAT32_COUNTS}
PAIR = {"net": "pair", "rule": WITH_BATCH_NORM["rule"], "batches": 16}
UNUSED = {"net": "partly_used", "find_unused_parameters": True}
PLACES = ("leader", "sharded")
CASES = [
    _case("Adam", partial(Adam, lr=0.01)),
    _case("AdamW, fused", ADAMW, **FUSED),
    _case("NAdam, foreach", NADAM, options={"foreach": True}, batches=9),
    _case("RAdam", RADAM, batches=13),
    _case("Adam averaged", moments="average"),
    _case("eta=0", NADAM, block_size=2, block_momentum=0.0),
    _case("classical block momentum", nesterov=False, block_lr=0.8),
    _case("parameter groups", biases={"lr": 0.05, "betas": (0.8, 0.9)}, accumulate=2, epochs=4),
    _case("BatchNorm, warm-up", batches=12, warmup_steps=4, **WITH_BATCH_NORM),
    _case("unused by all ranks", NADAM, batches=UNUSED_BY_ALL + 2, block_size=1, **UNUSED),
    _tiers("group of all", 4, threshold=THRESHOLD, of="gradient"),
    _tiers("GTC", 2, threshold=THRESHOLD, batches=11),
    # Of gradients, all ranks of a group have the same moments.
    *(
        _tiers(f"GTC of gradients, {across}", 2, threshold=THRESHOLD, of="gradient", across=across)
        for across in PLACES
    ),
    *(
        _tiers(across, 2, across=across, net="partly_used", batches=12, frozen_too=True)
        for across in PLACES
    ),
    _tiers("two optimizers, warm-up", 2, threshold=THRESHOLD, warmup_steps=2, **PAIR),
]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Seen]]:
    """Records of every rank."""
    return run_ranks(watch_all, 4, CASES)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Seen]]:
    """Records of the workers of the reference for each case."""
    return {own.name: reference_seen(own) for own in CASES}


@BY_NAME
def test_weights_and_moments_are_those_of_the_reference_after_every_batch(
    case: Case, runs: list[dict[str, Seen]], expected: dict[str, list[Seen]]
) -> None:
    """Trainers return its global model, with the same bits on all ranks."""
    for rank, reference in enumerate(expected[case.name]):
        own = runs[rank][case.name]
        assert_like_reference(own, reference, tolerance=case.tolerance, rank=rank, noise=ROUNDING)
        assert identical(own.final, runs[0][case.name].final)


def test_all_ranks_start_a_block_with_the_same_bits(runs: list[dict[str, Seen]]) -> None:
    for name in ("Adam", "NAdam, foreach", "RAdam", "AdamW, fused"):
        for own in runs[1:]:
            for kind, values in own[name].moments[6].items():
                assert identical(values, runs[0][name].moments[6][kind])
            before = own[name].moments[5]["exp_avg"]
            assert not identical(before, runs[0][name].moments[5]["exp_avg"])


def test_step_count_grows_by_what_the_look_ahead_stands_for(runs: list[dict[str, Seen]]) -> None:
    """With tau = 3 and eta = 0.6, rho is 3 and 4.8, so that k is 3 + 1.8, then 4.8 + 3 + 2.88."""
    for name, ends in (("Adam", (4.8, 10.68)), ("Adam averaged", (3.0, 6.0))):
        for batch, k in zip((3, 6), ends, strict=True):
            for counts in runs[0][name].moments[batch]["counts"].values():
                torch.testing.assert_close(counts[0].item(), k, rtol=1e-12, atol=0.0)


def test_block_without_a_step_leaves_moments_and_counts(runs: list[dict[str, Seen]]) -> None:
    for own in runs:
        moments = own["unused by all ranks"].moments
        before, after = moments[UNUSED_BY_ALL - 1], moments[UNUSED_BY_ALL]
        for kind, values in after.items():
            assert torch.equal(values["sometimes.weight"], before[kind]["sometimes.weight"])
            assert not torch.equal(values["trunk.weight"], before[kind]["trunk.weight"])


def test_leader_and_sharded_are_the_same(runs: list[dict[str, Seen]]) -> None:
    """Both placements add in the same order, so that the models are bit-equal."""
    pairs = (PLACES, tuple(f"GTC of gradients, {across}" for across in PLACES))
    for own in runs:
        for leader, sharded in ((own[one], own[other]) for one, other in pairs):
            for batch, weights in leader.local.items():
                assert identical(weights, sharded.local[batch])
                for kind, values in leader.moments[batch].items():
                    assert identical(values, sharded.moments[batch][kind])
            assert identical(leader.final, sharded.final)
