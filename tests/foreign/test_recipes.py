"""Tests that the recipes train: in the environments of `make test-foreign`, and skipped elsewhere.

`python -m tests.foreign.recipes` makes the tables of docs/reports/foreign.md.
"""

from __future__ import annotations

import math
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.foreign.task import fingerprint
from tests.ranks import run_ranks

RECIPES = [
    ("lora", "peft", "model_averaging", {"steps": 12}),
    ("byol", "lightly", "bmuf", {"steps": 6}),
    ("forecaster", "pytorch_forecasting", "bmuf_adam", {"steps": 6}),
    ("kraken_ocr", "kraken", "bmuf_adam", {"epochs": 1}),
]


@pytest.mark.parametrize(("recipe", "package", "strategy", "settings"), RECIPES)
def test_recipe(
    recipe: str, package: str, strategy: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Groups end with one model, and send at a synchronisation no more than it trains."""
    pytest.importorskip(package, reason=f"{package} is not installed: make test-foreign")
    ranks = run_ranks(_train, 2, recipe, strategy, settings, str(tmp_path))
    assert ranks[0]["tensors"] == ranks[1]["tensors"]
    assert all(math.isfinite(value) for value in ranks[0]["metrics"].values())
    if recipe == "lora":
        assert ranks[0]["trained"] < 0.1 * ranks[0]["all"]
        assert 0 < ranks[0]["message"] <= ranks[0]["trained"]


def _train(recipe: str, strategy: str, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    os.chdir(folder)
    trainer = import_module(f"examples.recipes.{recipe}").main(strategy, **settings)
    module, metrics = trainer.lightning_module, trainer.strategy.metrics()
    parameters = list(module.parameters())
    sent = "hier/across/models/{}".format
    return {
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "tensors": fingerprint(dict(module.named_parameters()) | dict(module.named_buffers())),
        "trained": sum(p.nbytes for p in parameters if p.requires_grad),
        "all": sum(p.nbytes for p in parameters),
        "message": metrics[sent("payload_bytes")] / metrics[sent("calls")],
    }


@pytest.mark.parametrize("recipe", [recipe for recipe, *_ in RECIPES])
def test_recipes_are_short(recipe: str) -> None:
    path = REPOSITORY / "examples" / "recipes" / f"{recipe}.py"
    assert len(path.read_text().splitlines()) <= 80
