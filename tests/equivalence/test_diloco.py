"""DiLoCo on four ranks under a Trainer: final models equal the reference's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lightning_hier import DiLoCo
from lightning_hier.reference import BlockMomentum
from tests.equivalence.cases import (
    Case,
    Values,
    case,
    check_final,
    difference,
    fit_in_chunks,
    run_reference,
)
from tests.ranks import run_ranks

_LOOKING: dict[str, Any] = {"trainer": {"val_check_interval": 1}, "batches": 10}
ADAMW = {"outer_optimizer": partial(torch.optim.AdamW, lr=0.02, betas=(0.6, 0.9), weight_decay=0.1)}


def outer_case(name: str, *, group: int = 1, **settings: Any) -> Case:
    """A run of DiLoCo with these settings."""
    own = {"block_size": 3, "momentum": 0.8, "lr": 0.05, "find_unused_parameters": True}
    return case(name, sync=DiLoCo, group_size=group, **{**own, **settings})


CASES: list[Any] = [
    outer_case("the paper's defaults", batches=4, epochs=3),
    outer_case("momentum from the number of groups", outer_momentum="auto", outer_lr=1.0),
    outer_case("classical momentum", nesterov=False, outer_momentum=0.5),
    outer_case("no momentum, a warm-up", group=2, outer_momentum=0.0, outer_lr=1.3, warmup_steps=4),
    outer_case("BatchNorm", group=2, net="batch_norm"),
    # Each chunk has its own step counts, which an evaluation does not change.
    outer_case("AdamW outside", **ADAMW, **_LOOKING),
    outer_case("AdamW outside, late", **ADAMW, **_LOOKING, group=2, across="sharded", overlap=True),
]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank in runs with chunks of 7 elements."""
    return run_ranks(fit_in_chunks, 4, CASES, 7)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Any, states: list[dict[str, Values]]) -> None:
    check_final(case, states, run_reference(case).global_model())


def test_the_outer_step_matters() -> None:
    """A reference that only averages the models has another final model."""
    case = CASES[0]
    plain = replace(case, method=replace(case.method, outer=partial(BlockMomentum, eta=0.0)))
    models = [run_reference(own).global_model() for own in (plain, case)]
    assert difference(*models) > 1e-6
