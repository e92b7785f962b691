"""BMUF-Adam is bit-equal to Adam if there is one model, or if all workers are equal."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from lightning_hier import BMUFAdam, BMUFAdamStrategy, HierarchicalStrategy
from tests.equivalence.cases import Case, identical
from tests.equivalence.watching import Seen, watch
from tests.ranks import run_ranks

KINDS = ("AdamW", "NAdam", "RAdam")
ONE_GROUP = partial(
    HierarchicalStrategy,
    group_size="world",
    block_sync=BMUFAdam(block_size=3, local_beta1="keep"),
    warmup_steps=0,
)
ALONE = partial(BMUFAdamStrategy, block_size=2, warmup_steps=0, local_beta1="keep")
EVERY_STEP = partial(
    BMUFAdamStrategy,
    block_size=1,
    block_momentum=0.0,
    moments="average",
    warmup_steps=0,
    local_beta1="keep",
)


def _pairs(ours: Any, plain: str, data_of: int | None) -> dict[str, list[Seen]]:
    """Records of every optimizer under our strategy, and under a strategy of Lightning."""
    pairs = {}
    for kind in KINDS:
        kind_of = getattr(torch.optim, kind)
        rule = partial(kind_of, lr=0.02, betas=(0.8, 0.98), weight_decay=0.01)
        cases = [Case(name=kind, strategy=own, rule=rule) for own in (ours, partial(str, plain))]
        pairs[kind] = [watch(own, data_of=data_of) for own in cases]
    return pairs


def _assert_same(ours: Seen, plain: Seen) -> None:
    assert ours.local.keys() == plain.local.keys() and ours.local
    for batch, weights in ours.local.items():
        assert identical(weights, plain.local[batch])
        for kind in ("exp_avg", "exp_avg_sq"):
            assert identical(ours.moments[batch][kind], plain.moments[batch][kind]), kind
    _assert_same_counts(ours, plain)
    assert identical(ours.final, plain.final)


def _assert_same_counts(ours: Seen, plain: Seen) -> None:
    for batch, own in ours.moments.items():
        expected = plain.moments[batch]["counts"]
        torch.testing.assert_close(own["counts"], expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_model_is_plain_adam(ranks: int) -> None:
    strategy, plain = (ALONE, "auto") if ranks == 1 else (ONE_GROUP, "ddp")
    for own in run_ranks(_pairs, ranks, strategy, plain, None):
        for ours, other in own.values():
            _assert_same(ours, other)


def test_mean_of_equal_workers_at_every_step_is_plain_adam() -> None:
    """NAdam stores its product of mu in float32, this package in float64.

    NAdam's weights are therefore only close.
    """
    for own in run_ranks(_pairs, 2, EVERY_STEP, "ddp", 0):
        for kind in ("AdamW", "RAdam"):
            _assert_same(*own[kind])
        ours, plain = own["NAdam"]
        _assert_same_counts(ours, plain)
        torch.testing.assert_close(ours.local, plain.local, rtol=1e-6, atol=1e-8)
