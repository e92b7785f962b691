"""Script of test_host_death: trains in a job that loses a host, and saves the model of its rank."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lightning_hier as lh
from tests.trainer.fitting import Net, loader, make_trainer, weights
from tests.waiting import leave_mark

FATAL_STEP = 6


class _StopsToDie(Net):
    """On the last rank, leaves a mark in the middle of training and waits to be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(batchnorm=True)
        self.folder = folder

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        last = self.trainer.global_rank == self.trainer.world_size - 1
        if last and self.global_step >= FATAL_STEP:  # a late rank of PSP-SGD may skip one
            leave_mark(self.folder, "ready")
            time.sleep(60)
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)


def main() -> None:
    """Train and save the model. Arguments: folder and name of the strategy."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    limit = timedelta(seconds=60)
    strategy: Any = lh.TwoStageASGDStrategy(timeout=limit, push_period=2)
    if name == "psp":
        strategy = lh.PSPStrategy(timeout=limit, min_pushes=2)
    model = _StopsToDie(folder)
    trainer = make_trainer(strategy, max_epochs=2, num_sanity_val_steps=0)
    trainer.fit(model, loader(10), loader(2))
    loss = float(trainer.callback_metrics["val_loss"])
    rank = trainer.global_rank
    torch.save((weights(model), loss, trainer.global_step), folder / f"{rank}.pt")
    leave_mark(folder, f"saved{rank}")


if __name__ == "__main__":
    main()
