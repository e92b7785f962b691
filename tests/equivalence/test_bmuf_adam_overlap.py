"""BMUF-Adam in fragments, with overlap, and with moments exchanged every few blocks.

Weights, moments and step counts on four ranks equal those of float64 twins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from lightning_hier.algorithms import exchange_chunks
from tests.equivalence.adam_twins import Rule
from tests.equivalence.cases import identical, make_twin
from tests.equivalence.late_adam_twins import LateCase, late_case
from tests.equivalence.watching import Seen, assert_like_twin, twin_seen, watch, watch_all
from tests.ranks import run_ranks

ADAMW = Rule(kind="adamw", lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)
FAST = Rule(lr=0.02, betas=(0.5, 0.99))
ADAM = replace(FAST, weight_decay=0.1)
NADAM = Rule(kind="nadam", lr=0.02, betas=(0.8, 0.999), psi=0.05)
_SHARDED = {"group": 2, "across": "sharded"}
CASES = [
    late_case("two fragments", FAST, fragments=2),
    late_case("three fragments of NAdam", NADAM, fragments=3, block_size=5),
    late_case("fragments, sharded", replace(FAST, kind="adamw"), fragments=2, **_SHARDED),
    late_case("moments every second block", FAST, moments_every=2),
    late_case("every third block of NAdam", NADAM, moments_every=3, block_size=2),
    late_case("averages every second block", FAST, moments_every=2, moments="average"),
    late_case("groups, moments every second block", FAST, moments_every=2, **_SHARDED),
    late_case("less often than the run ends", FAST, moments_every=20),
    late_case("fragments, moments every second block", FAST, fragments=2, moments_every=2),
    late_case("a step", ADAMW, overlap=1),
    late_case("half a block", ADAMW, overlap=2),
    late_case("a block", ADAMW, overlap=True),
    late_case("merged, every second block", ADAMW, overlap=2, merge=0.5, moments_every=2),
    late_case("three fragments, a block, merged", ADAM, overlap=4, fragments=3, merge=0.5),
    late_case("three fragments, sharded", ADAM, group=2, fragments=3, overlap=3, across="sharded"),
    late_case("given up", ADAM, overlap=2, merge=0.0),
    late_case("NAdam, every second block", NADAM, fragments=2, overlap=4, moments_every=2),
    late_case("averages", NADAM, overlap=3, moments="average"),
    late_case("partly used", NADAM, overlap=3, net="partly_used", batches=27),
    # A rounding error of int8 is up to 1/254 of the largest element, and one of bfloat16 up to
    # 1/512 of each element. The following steps amplify them.
    late_case("int8", ADAM, fragments=2, overlap=3, across_dtype="int8", tolerance=0.02),
]


def _watch_in_chunks(cases: list[LateCase]) -> dict[str, Seen]:
    """Train with small chunks, as if models had millions of elements.

    The moments of a parameter may end in the middle of a chunk.
    """
    with mock.patch.multiple(exchange_chunks, CHUNK=29, ONE_HOST_CHUNK=29):
        return watch_all(cases)


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Seen]]:
    """Records of every rank."""
    return run_ranks(_watch_in_chunks, 4, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weights_moments_and_counts_are_those_of_the_twin(
    case: LateCase, runs: list[dict[str, Seen]]
) -> None:
    for rank, twin in enumerate(twin_seen(case)):
        own = runs[rank][case.name]
        assert_like_twin(own, twin, tolerance=case.tolerance, rank=rank)
        assert identical(own.final, runs[0][case.name].final)


def _is_unchanged() -> bool:
    case = late_case("seen", NADAM, fragments=2, overlap=3, trainer={"val_check_interval": 1})
    evaluated, plain = watch(case, looking=True, save_after=range(1, 19)), watch(case)
    moments = [
        identical(own, plain.moments[batch][kind])
        for batch, kinds in evaluated.moments.items()
        for kind, own in kinds.items()
    ]
    return all(moments) and identical(evaluated.final, plain.final) and bool(evaluated.validated)


def test_evaluation_and_saving_change_nothing() -> None:
    assert run_ranks(_is_unchanged, 4) == [True] * 4


@pytest.mark.parametrize("merge", ["progress", 0.0, 0.3, 1.0])
def test_rho_is_the_number_of_steps_in_the_global_update(merge: Any) -> None:
    """With a constant gradient, every step of Adam has the length of the learning rate.

    Delta divided by this length is therefore a number of steps.
    """
    rule = Rule(lr=0.02, betas=(0.5, 0.99), eps=0.0)
    twin: Any = make_twin(late_case("", rule, overlap=3, merge=merge))
    for _ in range(19):
        twin.backward([lambda net: sum(p.sum() for p in net.parameters())] * 4)
        twin.step()
        for worker in twin.workers:
            for own in worker.memory.values():
                k = torch.tensor(own.k, dtype=torch.float64)
                torch.testing.assert_close(own.m, (1 - 0.5**k).expand_as(own.m))
                torch.testing.assert_close(own.v, (1 - 0.99**k).expand_as(own.v))
    [part] = twin.parts
    sent = [*part.updates, *([part.travelling] if part.travelling else [])]
    for name, rho in twin._rho.items():
        delta = torch.zeros(())
        for update in sent:
            delta = 0.6 * delta + update[name]
        torch.testing.assert_close(-delta / rule.lr, torch.full_like(delta, rho))
