"""Tests that groups neither communicate nor wait for each other within a block."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.hosts import hosts, link_bytes
from tests.namespaces import run_on_hosts
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF_GTC, Net, all_equal, fit, this_rank, weights
from tests.waiting import leave_mark, wait_for_marks

BLOCK = 8


class _SlowFirstGroup(Net):
    """Rank 0 waits in the middle of a block until the other group is at the end of its block.

    If the other group waits for rank 0 meanwhile, rank 0 continues after a limit.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.others_came = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rank = this_rank()
        if batch_idx == 5 and rank >= 2:
            (self.folder / str(rank)).touch()
        if batch_idx == 2 and rank == 0:
            until = time.monotonic() + 30.0
            while time.monotonic() < until and not self.others_came:
                self.others_came = all((self.folder / name).exists() for name in "23")
                time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def _slow_group(folder: Path) -> tuple[bool, torch.Tensor]:
    model = _SlowFirstGroup(folder)
    fit(BMUF_GTC(block_size=6, dense_below=0), 9, model)
    return model.others_came, weights(model)


def test_group_comes_to_its_blocks_end_while_another_one_stands_still(tmp_path: Path) -> None:
    results = run_ranks(_slow_group, 4, tmp_path)
    assert results[0][0]
    assert all_equal(model for _, model in results)


class _Wide(Net):
    """Reads the byte counters on the first rank of each host, in the second block and at its end.

    A wide layer makes the gradients much larger than the overhead of TCP.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(lr=1e-6)
        self.folder = folder
        self.layers[0] = nn.Linear(4, 20_000)
        self.layers[2] = nn.Linear(20_000, 2)
        self.counters: dict[str, tuple[int, int]] = {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        names = {BLOCK + 1: "begin", 2 * BLOCK - 1: "middle", 2 * BLOCK: "end"}
        if batch_idx in names and os.environ["LOCAL_RANK"] == "0":
            if names[batch_idx] != "middle":
                self.wait_for_other_host(names[batch_idx])
            self.counters[names[batch_idx]] = link_bytes()
        return super().training_step(batch, batch_idx)

    def wait_for_other_host(self, where: str) -> None:
        """Wait until both hosts get here, so that all bytes of the block before have arrived."""
        leave_mark(self.folder, f"{where}{os.environ['GROUP_RANK']}")
        wait_for_marks(self.folder, f"{where}0", f"{where}1")


def _link_bytes(folder: Path) -> dict[str, Any]:
    """Train for two blocks and one more step, and return the bytes that this rank has read."""
    model = _Wide(folder)
    strategy = fit(
        BMUF_GTC(group_size="node", block_size=BLOCK, density=0.1), 2 * BLOCK + 1, model
    ).strategy
    return {
        "counters": model.counters,
        "model_bytes": sum(p.numel() * p.itemsize for p in model.parameters()),
        "in_group": strategy.traffic.total("group").payload_bytes,
        "group": strategy.communicators.group.ranks,
        "across": strategy.communicators.across.ranks,
    }


@pytest.mark.needs_netns
def test_no_gradient_crosses_the_hosts_link_within_a_block(tmp_path: Path) -> None:
    with hosts(2) as both:
        results = run_on_hosts(both, 2, _link_bytes, tmp_path)
    for rank, group in ((0, [0, 1]), (2, [2, 3])):
        result = results[rank]
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
