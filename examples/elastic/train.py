"""Train one group on digits, together with the other groups that are running.

    torchft_lighthouse --min_replicas 1 --bind 127.0.0.1:29510
    python -m examples.elastic.train --lighthouse http://127.0.0.1:29510 --group 0 --groups 3

Run the second command once for each group, with the index of the group. The same command restarts a
group that was stopped.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier
from examples.elastic.step_log import StepLog
from examples.image.step_pause import Pace


class DigitClassifier(pl.LightningModule):
    """A small convolutional network for images of 8 x 8 pixels, trained with AdamW."""

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
        """Return the logits (B, 10) of images (B, 1, 8, 8)."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the mean cross entropy of the batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW with a constant learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=5e-4)


class LastStep(Callback):
    """End the training at a step that somebody writes to a file while the group trains.

    Args:
        file: file of the step, complete or absent. It must be an end of a block.

    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._file.exists() and trainer.global_step >= int(self._file.read_text()):
            trainer.should_stop = True


def digits() -> TensorDataset:
    """Return scikit-learn's digits: images (1797, 1, 8, 8) with values in [-1, 1], and labels."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    images = torch.from_numpy(dataset.images).float().unsqueeze(1) / 8 - 1
    return TensorDataset(images, torch.from_numpy(dataset.target).long())


def main() -> None:
    """Train one group, and log its steps if ``--log`` is given."""
    options = _parser().parse_args()
    pl.seed_everything(options.seed, verbose=False)
    torch.set_num_threads(1)
    strategy = lightning_hier.HierarchicalStrategy(
        block_sync=lightning_hier.DiLoCo(block_size=options.block_size),
        membership=lightning_hier.TorchFT(
            options.lighthouse, group=options.group, groups=options.groups, join_timeout_s=20
        ),
        timeout=timedelta(minutes=2),
    )
    callbacks: list[Any] = [Pace(options.step_s)]
    if options.last_step is not None:
        callbacks.append(LastStep(options.last_step))
    if options.log is not None:
        callbacks.append(StepLog(options.log, block_size=options.block_size))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_steps=options.steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=options.log is None,
        enable_model_summary=False,
    )
    # Lightning adds a sampler that divides the data among the groups.
    trainer.fit(DigitClassifier(), DataLoader(digits(), batch_size=16, shuffle=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.elastic.train")
    parser.add_argument("--lighthouse", required=True, help="URL of the Lighthouse")
    parser.add_argument("--group", type=int, required=True, help="index of this group, from 0")
    parser.add_argument("--groups", type=int, required=True, help="maximum number of groups")
    parser.add_argument(
        "--steps", type=int, default=2000, help="steps of the run (default: %(default)s)"
    )
    parser.add_argument(
        "--last_step", type=Path, help="file in which an earlier last step may appear"
    )
    parser.add_argument(
        "--block_size", type=int, default=20, help="steps of a block (default: %(default)s)"
    )
    parser.add_argument(
        "--step_s",
        type=float,
        default=0.05,
        help="minimum duration of a step in seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed, the same in all groups (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, help="file to which a line is appended for each step")
    return parser


if __name__ == "__main__":
    main()
