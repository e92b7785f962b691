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
    fit_all,
    fit_in_chunks,
    run_reference,
)
from tests.ranks import run_ranks

ADAMW = {"outer_optimizer": partial(torch.optim.AdamW, lr=0.02, betas=(0.6, 0.9), weight_decay=0.1)}


def outer_case(name: str, *, group: int = 1, **settings: Any) -> Case:
    """A run of DiLoCo with these settings."""
    own = {"block_size": 3, "momentum": 0.8, "lr": 0.05, "find_unused_parameters": True}
    return case(name, sync=DiLoCo, group_size=group, **{**own, **settings})


CASES: list[Any] = [
    outer_case("the paper's defaults"),
    outer_case("groups of two", group=2),
    outer_case("one group", group=4),
    outer_case("momentum from the number of groups", outer_momentum="auto", outer_lr=1.0),
    outer_case("classical momentum", nesterov=False, outer_momentum=0.5),
    outer_case("no momentum", outer_momentum=0.0, outer_lr=1.3),
    outer_case("AdamW outside", **ADAMW),
    outer_case("AdamW outside, sharded", **ADAMW, group=2, across="sharded"),
    outer_case("after a warm-up", group=2, warmup_steps=4, batches=12),
    outer_case("blocks across epochs", batches=4, epochs=3),
    outer_case("BatchNorm", group=2, net="batch_norm"),
    outer_case("two optimizers", group=2, block_size=2, net="pair", batches=16),
    outer_case("overlapping", overlap=True, batches=11),
    outer_case("AdamW outside, overlapping", **ADAMW, overlap=True),
]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_all, 4, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Any, states: list[dict[str, Values]]) -> None:
    check_final(case, states, run_reference(case).global_model())


def test_the_outer_step_matters() -> None:
    """A reference that only averages the models has another final model."""
    case = CASES[0]
    plain = replace(case, method=replace(case.method, outer=partial(BlockMomentum, eta=0.0)))
    models = [run_reference(own).global_model() for own in (plain, case)]
    assert difference(*models) > 1e-6


_LOOKING: dict[str, Any] = {"trainer": {"val_check_interval": 1}, "batches": 11}
CUT = [
    outer_case("AdamW outside", **ADAMW, **_LOOKING),
    outer_case(
        "AdamW outside, sharded, overlapping",
        **ADAMW,
        group=2,
        across="sharded",
        overlap=True,
        **_LOOKING,
    ),
]


@pytest.fixture(scope="module")
def cut_states() -> list[dict[str, Values]]:
    """Final states of runs with chunks of 7 elements and validation at every batch."""
    return run_ranks(fit_in_chunks, 4, CUT, 7)


@pytest.mark.parametrize("case", CUT, ids=lambda case: case.name)
def test_chunks_are_stepped_as_one_model(case: Any, cut_states: list[dict[str, Values]]) -> None:
    """Each chunk has its own step counts, which an evaluation does not change."""
    check_final(case, cut_states, run_reference(case).global_model())
