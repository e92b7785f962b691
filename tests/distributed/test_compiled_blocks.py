"""Blocks of a large model come to the same bits with and without a C compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights

_WIDTH = 20_000
"""Hidden units of which 4 inputs and 2 outputs make more elements than the loops ask for."""


class _Wide(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers[0] = torch.nn.Linear(4, _WIDTH)
        self.layers[2] = torch.nn.Linear(_WIDTH, 2)


def _train(settings: dict[str, Any]) -> torch.Tensor:
    model = _Wide()
    fit(lh.BMUFStrategy(block_size=2, warmup_steps=0, **settings), 9, model)
    return weights(model)


@pytest.mark.parametrize(
    ("across_dtype", "overlap"),
    [
        pytest.param("same", False, id="same-at once"),
        pytest.param("same", True, id="same-overlap", marks=pytest.mark.slow),
        pytest.param("bfloat16", False, id="bfloat16-at once"),
        pytest.param("bfloat16", True, id="bfloat16-overlap", marks=pytest.mark.slow),
        pytest.param("int8", False, id="int8-at once", marks=pytest.mark.slow),
        pytest.param("int8", True, id="int8-overlap"),
        pytest.param("int4", False, id="int4-at once"),
    ],
)
def test_large_model_has_the_same_bits_with_and_without_a_compiler(
    across_dtype: str, overlap: bool
) -> None:
    settings = {"across_dtype": across_dtype, "overlap": overlap}
    forbidden = run_ranks(_train, 2, settings, env={"LIGHTNING_HIER_COMPILE": "0"})
    allowed = run_ranks(_train, 2, settings, env={"LIGHTNING_HIER_COMPILE": "1"})
    assert torch.equal(allowed[0], allowed[1])
    assert torch.equal(allowed[0], forbidden[0])
