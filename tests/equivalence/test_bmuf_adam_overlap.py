"""BMUF-Adam in fragments, with overlap, and with moments exchanged every few blocks.

Weights, moments and step counts on four ranks equal those of the reference.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import Adam, AdamW, NAdam

from lightning_hier import BMUFAdam
from tests.equivalence.cases import Case, case, identical, in_chunks, make_reference
from tests.equivalence.watching import Seen, assert_like_reference, reference_seen, watch_all
from tests.ranks import run_ranks

ADAMW = partial(AdamW, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)
FAST = partial(Adam, lr=0.02, betas=(0.5, 0.99))
ADAM = partial(FAST, weight_decay=0.1)
NADAM = partial(NAdam, lr=0.02, betas=(0.8, 0.999), momentum_decay=0.05)


def _case(name: str, rule: Any, *, group: int = 1, **settings: Any) -> Case:
    own = {"block_size": 4, "block_momentum": 0.6, "local_beta1": "keep", "batches": 14}
    more = {"find_unused_parameters": True, "sync": BMUFAdam, "group_size": group}
    return case(name, rule=rule, **{**own, **more, **settings})


_SHARDED = {"group": 2, "across": "sharded"}
CASES = [
    _case("three fragments of NAdam", NADAM, fragments=3, block_size=5),
    _case("groups, moments every second block", FAST, moments_every=2, **_SHARDED),
    _case("a block", ADAMW, overlap=True),
    _case("three fragments, a block, merged", ADAM, overlap=4, fragments=3, merge=0.5),
    _case("three fragments, sharded", ADAM, fragments=3, overlap=3, **_SHARDED),
    _case("given up", ADAM, overlap=2, merge=0.0),
    _case("NAdam, every second block", NADAM, fragments=2, overlap=4, moments_every=2),
    _case("averages", NADAM, overlap=1, moments="average"),
    _case("partly used", NADAM, overlap=3, net="partly_used", batches=19),
    # A rounding error of int8 is up to 1/254 of the largest element, and one of bfloat16 up to
    # 1/512 of each element. The following steps amplify them.
    _case("int8", ADAM, fragments=2, overlap=3, across_dtype="int8", tolerance=0.02),
]


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Seen]]:
    """Records of every rank."""
    return run_ranks(in_chunks, 4, watch_all, CASES, 29)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weights_moments_and_counts_are_those_of_the_reference(
    case: Case, runs: list[dict[str, Seen]]
) -> None:
    for rank, reference in enumerate(reference_seen(case)):
        own = runs[rank][case.name]
        assert_like_reference(own, reference, tolerance=case.tolerance, rank=rank)
        assert identical(own.final, runs[0][case.name].final)


@pytest.mark.parametrize("merge", ["progress", 0.3])
def test_rho_is_the_number_of_steps_in_the_global_update(merge: Any) -> None:
    """With a constant gradient, every step of Adam has the length of the learning rate.

    Delta divided by this length is therefore a number of steps. Moments are those of a constant
    gradient as well, for every merge.
    """
    rule = partial(FAST, eps=0.0)
    training = make_reference(_case("", rule, overlap=3, merge=merge))
    for _ in range(19):
        for worker in training.workers:
            sum(p.sum() for p in worker.model.parameters()).backward()
        training.step()
        for worker in training.workers:
            for state in worker.optimizers[0].state.values():
                m, v, k = state["exp_avg"], state["exp_avg_sq"], state["step"]
                torch.testing.assert_close(m, (1 - 0.5**k).expand_as(m))
                torch.testing.assert_close(v, (1 - 0.99**k).expand_as(v))
    fragment = training.fragments[0]
    outer: Any = fragment.outer
    delta, at = outer.Delta, 0
    if fragment.in_flight is not None:  # rho counts its steps from the send
        delta = 0.6 * delta + fragment.in_flight[0]
    for moments in fragment.moments:
        own = delta[at : at + moments.begin["exp_avg"].numel()]
        torch.testing.assert_close(-own / 0.02, torch.full_like(own, moments.rho))
        at += len(own)
