"""Script of test_isolation: trains on emulated hosts and records the bytes on the host's link."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lightning_hier as lh
from benchmarks.hosts import link_bytes
from tests.trainer.fitting import Net, fit
from tests.waiting import leave_mark, wait_for_marks

BLOCK = 8


class Watched(Net):
    """Reads the byte counters on the first rank of each host, in the second block and at its end.

    A wide layer makes the gradients much larger than the overhead of TCP.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
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


def main() -> None:
    """Train for two blocks and one more step. Arguments: folder and group size."""
    group_size: Any = sys.argv[2] if sys.argv[2] == "node" else int(sys.argv[2])
    model = Watched(Path(sys.argv[1]))
    strategy = lh.BMUFGTCStrategy(
        group_size=group_size, block_size=BLOCK, density=0.1, warmup_steps=0
    )
    fit(strategy, 2 * BLOCK + 1, model)
    if os.environ["LOCAL_RANK"] == "0":
        result = {
            "counters": model.counters,
            "model_bytes": sum(p.numel() * p.itemsize for p in model.parameters()),
            "in_group": strategy.traffic.total("group").payload_bytes,
            "group": strategy.communicators.group.ranks,
            "across": strategy.communicators.across.ranks,
        }
        (Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
