"""Models of runs with quantised updates stay close to the exact reference over many blocks."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hier import BMUFStrategy
from tests.equivalence.cases import (
    Case,
    Values,
    case,
    difference,
    fit_all,
    identical,
    run_reference,
)
from tests.ranks import run_ranks

# Largest difference of the final models, relative to the largest value of a tensor. It does not
# grow with the number of blocks, because error feedback sends rounding errors later.
BOUNDS = {"bfloat16": 1e-3, "int8": 5e-3, "int4": 5e-3 * 127 / 7}


def _case(dtype: str, *, overlap: bool) -> Case:
    settings: Any = {"block_size": 3, "across_dtype": dtype, "momentum": 0.5, "batches": 15}
    settings["local_momentum"] = "reset"
    return case(f"{dtype}, overlap {overlap}", BMUFStrategy, **settings, epochs=2, overlap=overlap)


CASES = [*(_case(dtype, overlap=False) for dtype in BOUNDS), _case("int8", overlap=True)]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_all, 4, CASES)


@pytest.mark.parametrize("own", CASES, ids=lambda own: own.name)
def test_final_model_is_close_to_the_exact_one(own: Case, states: list[dict[str, Values]]) -> None:
    error = difference(states[0][own.name], run_reference(own).global_model())
    assert 1e-6 < error < BOUNDS[own.name.split(",")[0]]
    for rank in (1, 2, 3):
        assert identical(states[rank][own.name], states[0][own.name]), f"rank {rank}"
