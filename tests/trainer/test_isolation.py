"""Tests that groups neither communicate nor wait for each other within a block."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.hosts import hosts
from benchmarks.launch import run_module
from lightning_hier.strategies.sigterm import QuietTermination
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF_GTC, Net, all_equal, fit, this_rank, weights


class _SlowFirstGroup(Net):
    """Rank 0 waits in the middle of a block until the other group is at the end of its block.

    If the other group waits for rank 0 meanwhile, rank 0 continues after ``limit_s`` seconds.
    """

    def __init__(self, folder: Path, limit_s: float) -> None:
        super().__init__()
        self.folder, self.limit_s = folder, limit_s
        self.others_came = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rank = this_rank()
        if batch_idx == 5 and rank >= 2:
            (self.folder / str(rank)).touch()
        if batch_idx == 2 and rank == 0:
            until = time.monotonic() + self.limit_s
            while time.monotonic() < until and not self.others_came:
                self.others_came = all((self.folder / name).exists() for name in "23")
                time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def _slow_group(folder: Path, limit_s: float, quiet: bool) -> tuple[bool, torch.Tensor]:
    if not quiet:
        QuietTermination.install = lambda self: None  # type: ignore[method-assign]
    model = _SlowFirstGroup(folder, limit_s)
    fit(BMUF_GTC(block_size=6, dense_below=0), 9, model)
    return model.others_came, weights(model)


def test_group_comes_to_its_blocks_end_while_another_one_stands_still(tmp_path: Path) -> None:
    results = run_ranks(_slow_group, 4, tmp_path, 30.0, True)
    assert results[0][0]
    assert all_equal(model for _, model in results)


def test_lightnings_check_for_sigterm_at_every_batch_couples_groups(tmp_path: Path) -> None:
    """Control for the test above, which detects the coupling that the strategy removes."""
    assert not run_ranks(_slow_group, 4, tmp_path, 2.0, False)[0][0]


@pytest.mark.needs_netns
@pytest.mark.parametrize("group_size", [pytest.param("node", marks=pytest.mark.slow), "2"])
def test_no_gradient_crosses_the_hosts_link_within_a_block(tmp_path: Path, group_size: str) -> None:
    with hosts(2) as both:
        run_module(
            both, 2, "tests.trainer.link_bytes_run", str(tmp_path), group_size, folder=tmp_path
        )
    for rank, group in ((0, [0, 1]), (2, [2, 3])):
        result = json.loads((tmp_path / f"{rank}.json").read_text())
        assert result["group"] == group
        assert result["across"] == [0, 2]
        assert result["in_group"] > result["model_bytes"]  # gradients were exchanged in the group
        counters, model_bytes = result["counters"], result["model_bytes"]
        # Allowed are acknowledgements, address resolution, and the start of the other host's
        # synchronisation (an entry in the store and a few numbers).
        within = sum(counters["middle"]) - sum(counters["begin"])
        assert within < model_bytes / 50
        at_end = [
            end - middle for end, middle in zip(counters["end"], counters["middle"], strict=True)
        ]
        assert all(0.9 * model_bytes < counted < 1.5 * model_bytes for counted in at_end)
