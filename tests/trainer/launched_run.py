"""Script of test_launchers: trains and validates, and saves the model of each rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch

from lightning_hier.strategies.registry import PRESETS
from tests.trainer.fitting import Net, loader, weights


def main() -> None:
    """Train two ranks of one device and save the model. Arguments: folder, name of the strategy."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    os.environ.setdefault("WORLD_SIZE", "2")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=PRESETS[name](ranks_per_device=2),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Net()
    trainer.fit(model, loader(5), loader(2))
    torch.save((weights(model), trainer.world_size), folder / f"{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
