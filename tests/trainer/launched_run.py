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
    """Train two ranks and save the model. Arguments: folder, name of the strategy, devices."""
    folder, name, devices = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.environ.setdefault("WORLD_SIZE", "2")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=PRESETS[name](ranks_per_device=2 // devices),
        max_epochs=2,
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
