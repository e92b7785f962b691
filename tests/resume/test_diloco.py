"""A run of DiLoCo that is stopped and resumed ends as the one that was not, bit for bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import stop_and_go_on, stop_each_in_the_middle

DILOCO = partial(lh.DiLoCoStrategy, group_size=1, block_size=4, warmup_steps=0)
MERGED = lh.DiLoCo(block_size=4, fragments=2, overlap=3, merge=0.5, across_dtype="int8")
HIERARCHICAL = partial(lh.HierarchicalStrategy, group_size=1, warmup_steps=0)
ADAMW = partial(torch.optim.AdamW, lr=0.1)

# Ranks, strategy, inner optimizer.
RUNS: dict[str, tuple[int, Any, str]] = {
    "each rank a group": (2, DILOCO, "AdamW"),
    "AdamW outside, sharded": (
        4,
        partial(DILOCO, group_size=2, block_size=3, outer_optimizer=ADAMW, across="sharded"),
        "SGD",
    ),
    "overlap and int8": (2, partial(DILOCO, overlap=True, across_dtype="int8"), "SGD"),
    "virtual workers": (2, partial(DILOCO, virtual_workers=2), "Adam"),
    "fragments, the third of them just synchronised": (2, partial(DILOCO, fragments=4), "AdamW"),
    "fragments and a delay, one of them in flight": (
        4,
        partial(DILOCO, group_size=2, fragments=2, overlap=3, across="sharded"),
        "SGD",
    ),
    "fragments, virtual workers, merged": (
        2,
        partial(HIERARCHICAL, block_sync=MERGED, virtual_workers=2),
        "SGD",
    ),
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_in_the_middle_of_a_block_and_of_an_epoch(ranks: int, tmp_path: Path) -> None:
    runs = {name: run for name, (number, *run) in RUNS.items() if number == ranks}
    found = run_ranks(stop_each_in_the_middle, ranks, runs, tmp_path)
    assert found == [{name: [] for name in runs}] * ranks


def test_at_a_blocks_end(tmp_path: Path) -> None:
    """The outer optimizer's step count and moments go on from the file."""
    strategy = partial(DILOCO, outer_optimizer=ADAMW)
    arguments = (strategy, "on_train_batch_end", 8, tmp_path)
    assert run_ranks(stop_and_go_on, 2, *arguments, optimizer="SGD", workers=1) == [[]] * 2
