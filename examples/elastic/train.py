"""One group that trains on digits, together with the groups that are present.

    lightning-hier lighthouse --bind 127.0.0.1:29510
    python -m examples.elastic.train --lighthouse http://127.0.0.1:29510 --group 0 --groups 3

The second command is run once for each group, with its own number. A group that was stopped is
started again by the same command.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier
from examples.elastic.step_log import StepLog
from examples.image.step_pause import Pace


class DigitClassifier(pl.LightningModule):
    """A small convolutional network for images of 8 x 8 pixels, trained by AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 10) of images (B, 1, 8, 8)."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the mean cross entropy of the batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW with a constant learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=5e-4)


def digits() -> TensorDataset:
    """The digits of scikit-learn: images (1797, 1, 8, 8) with values from -1 to 1, and labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.from_numpy(found.images).float().unsqueeze(1) / 8 - 1
    return TensorDataset(images, torch.from_numpy(found.target).long())


def main() -> None:
    """Train, and write a log of the steps if one is wanted."""
    asked = _parser().parse_args()
    pl.seed_everything(asked.seed, verbose=False)
    torch.set_num_threads(1)
    strategy = lightning_hier.HierarchicalStrategy(
        block_sync=lightning_hier.DiLoCo(block_size=asked.block_size),
        membership=lightning_hier.TorchFT(
            asked.lighthouse, group=asked.group, groups=asked.groups, join_timeout_s=20
        ),
        timeout=timedelta(minutes=2),
    )
    callbacks: list[Any] = [Pace(asked.step_s)]
    if asked.log is not None:
        callbacks.append(StepLog(asked.log, block_size=asked.block_size))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_steps=asked.steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=asked.log is None,
        enable_model_summary=False,
    )
    # Lightning adds a sampler that gives each group its own part of the data.
    trainer.fit(DigitClassifier(), DataLoader(digits(), batch_size=16, shuffle=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.elastic.train")
    parser.add_argument("--lighthouse", required=True, help="address that the Lighthouse prints")
    parser.add_argument("--group", type=int, required=True, help="number of this group, from 0")
    parser.add_argument("--groups", type=int, required=True, help="largest number of groups")
    parser.add_argument("--steps", type=int, default=2000, help="of the run (%(default)s)")
    parser.add_argument("--block_size", type=int, default=20, help="steps (%(default)s)")
    parser.add_argument(
        "--step_s", type=float, default=0.05, help="least seconds of a step (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same in all groups")
    parser.add_argument("--log", type=Path, help="file to which each step is appended")
    return parser


if __name__ == "__main__":
    main()
