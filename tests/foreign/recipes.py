"""Trains recipes beside DDP, for their tables: `python -m tests.foreign.recipes lora byol`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from statistics import mean, stdev
from typing import Any

import lightning_hier
from tests.foreign.environments import REPOSITORY, python_of
from tests.ranks import run_ranks

RESULTS = REPOSITORY / "outputs" / "foreign"
PAGE = REPOSITORY / "docs" / "reports" / "foreign.md"
RANKS = 2
SEEDS = range(2)
LONG_BLOCKS = "model_averaging, blocks of 27"
# The package of each recipe, and the strategies that it is trained with beside DDP.
RECIPES = {
    "lora": ("peft", ("ddp", "model_averaging", "bmuf_adam", LONG_BLOCKS)),
    "byol": ("lightly", ("ddp", "model_averaging", "bmuf", "diloco")),
    "forecaster": ("pytorch-forecasting", ("ddp", "model_averaging", "bmuf_adam")),
    "kraken_ocr": ("kraken", ("ddp", "bmuf_adam")),
}
# Arguments of `main`, by what is behind the strategy's name in the table.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {"lora": {"": {}, ", B alone": {"train_a": False}}}


def strategy_of(name: str) -> Any:
    """Return what is passed to the Trainer."""
    if name == "diloco":
        return lightning_hier.DiLoCoStrategy(group_size=1)  # every rank a group, as of the others
    if name != LONG_BLOCKS:
        return name
    from tests.foreign.products import ProductsStrategy  # needs peft

    return ProductsStrategy(block_size=27, warmup_steps=6)


def rank(
    recipe: str, seeds: range, folder: str, **arguments: Any
) -> dict[str, dict[str, list[float]]]:
    """Train with all strategies and seeds on this rank, and return losses and bytes by row."""
    main: Callable[..., Any] = import_module(f"examples.recipes.{recipe}").main
    os.chdir(folder)
    rows: dict[str, dict[str, list[float]]] = {}
    for variant, settings in VARIANTS.get(recipe, {"": {}}).items():
        for name in RECIPES[recipe][1]:
            row = rows[name + variant] = {"losses": [], "bytes": [], "gaps": []}
            for seed in seeds:
                trainer = main(strategy_of(name), seed=seed, **settings, **arguments)
                row["losses"].append(_loss(trainer.callback_metrics))
                row["bytes"].append(_payload_bytes(trainer))
                row["gaps"] += getattr(trainer.strategy, "gaps", [])
    return rows


def _loss(metrics: Any) -> float:
    """Return the loss, or the share of wrong characters."""
    name = "val_accuracy" if "val_accuracy" in metrics else "val_loss"
    return float(metrics[name] if name == "val_loss" else 1 - metrics[name])


def _payload_bytes(trainer: Any) -> float:
    """Return the bytes that this rank has sent after the first model, of DDP by its all-reduce."""
    if not hasattr(trainer.strategy, "metrics"):
        trained = sum(p.nbytes for p in trainer.lightning_module.parameters() if p.requires_grad)
        return 2 * (RANKS - 1) / RANKS * trained * trainer.global_step
    sent = trainer.strategy.metrics()
    return float(sent["hier/payload_bytes"] - sent["hier/across/initial_model/payload_bytes"])


def train(recipe: str) -> None:
    """Train in the environment of the package, and keep the rows."""
    os.environ["FOREIGN_PACKAGE"] = RECIPES[recipe][0]  # so that it is imported only once
    with tempfile.TemporaryDirectory() as folder:  # in which a recipe writes
        rows = run_ranks(rank, RANKS, recipe, SEEDS, folder, timeout_s=3600)[0]
    (RESULTS / f"recipe-{recipe}.json").write_text(json.dumps(rows, indent=1))


def table(recipe: str) -> str:
    """Return the table of a recipe."""
    rows = json.loads((RESULTS / f"recipe-{recipe}.json").read_text())
    ddp = rows["ddp"]["losses"]
    lines = ["| strategy | loss | of DDP's | bytes of a rank |", "| --- | --- | --- | --- |"]
    for name, row in rows.items():
        losses = row["losses"]
        ratios = [own / of_ddp for own, of_ddp in zip(losses, ddp, strict=True)]
        spread = f"{mean(losses):.3f} ± {stdev(losses):.3f}"
        ratio = f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {name} | {spread} | {ratio} | {mean(row['bytes']) / 1e6:.2f} MB |")
    return "\n".join(lines)


def main() -> None:
    """Train the named recipes or all, and write their tables between the marks of the page."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for recipe in sys.argv[1:] or RECIPES:
        code = f"from tests.foreign.recipes import train; train({recipe!r})"
        python = python_of(RECIPES[recipe][0])
        subprocess.run([python, "-c", code], cwd=REPOSITORY, check=True)
        before, mark, after = PAGE.read_text().partition(f"<!-- {recipe} -->\n")
        end = after.partition("<!-- end -->")[2]
        PAGE.write_text(f"{before}{mark}\n{table(recipe)}\n\n<!-- end -->{end}")


if __name__ == "__main__":
    main()
