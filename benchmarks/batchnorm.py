"""Loss of a network with BatchNorm after outer steps, with its statistics and with new ones.

    python -m benchmarks.batchnorm --seeds 0 1 2

A small convolutional network learns handwritten digits on 2 ranks, each of which is a group. At the
end of an epoch, the global model has the mean of the local models' statistics. A copy of it gets
statistics that ``update_bn`` computes anew, from the training images and the global weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from examples.quiet import silence_lightning
from examples.ranks import run_module
from examples.tables import markdown

RANKS = 2
EPOCHS = 6
BLOCK_SIZE = 5
DILOCO = lh.DiLoCo(block_size=BLOCK_SIZE)
# Synchronisation across groups, and the normalisation after each convolution.
VARIANTS: dict[str, tuple[lh.BlockSync | None, str]] = {
    "DDP": (None, "batch"),
    "ModelAveraging": (lh.ModelAveraging(block_size=BLOCK_SIZE), "batch"),
    "BMUF": (lh.BMUF(block_size=BLOCK_SIZE), "batch"),
    "DiLoCo": (DILOCO, "batch"),
    "DiLoCo, nesterov=False": (replace(DILOCO, nesterov=False), "batch"),
    "DiLoCo, outer_momentum='auto'": (replace(DILOCO, outer_momentum="auto"), "batch"),
    "DiLoCo, GroupNorm": (DILOCO, "group"),
}


class Digits(pl.LightningModule):
    """Three convolutions, each with a normalisation, and AdamW."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 16), (16, 32), (32, 32)):
            normalised = nn.BatchNorm2d(after) if norm == "batch" else nn.GroupNorm(4, after)
            layers += [nn.Conv2d(before, after, 3, padding=1), normalised, nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Losses(pl.Callback):
    """Computes both validation losses of the global model at the end of each epoch, on rank 0."""

    def __init__(self, model: Digits, train: TensorDataset, valid: TensorDataset) -> None:
        self.model, self.train, self.valid = model, train, valid
        self.losses: list[tuple[float, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            self.model.load_state_dict(pl_module.state_dict())
            mean_statistics = self._loss()
            update_bn(DataLoader(self.train, batch_size=64), self.model)
            self.losses.append((mean_statistics, self._loss()))

    @torch.no_grad()
    def _loss(self) -> float:
        pixels, labels = self.valid.tensors
        return float(nn.functional.cross_entropy(self.model.eval()(pixels), labels))


def images(seed: int) -> list[TensorDataset]:
    """Return 1440 training and 357 validation images, 8 by 8 in [0, 1]."""
    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return [TensorDataset(pixels[i], labels[i]) for i in (order[:1440], order[1440:])]


def train(variant: str, seed: int) -> Tensor:
    """Train, and return the mean over the second half of the epochs of both losses, on rank 0."""
    pl.seed_everything(seed, verbose=False)
    block_sync, norm = VARIANTS[variant]
    training, validation = images(seed)
    measured = Losses(Digits(norm), training, validation)
    strategy: Any = "ddp"
    if block_sync is not None:
        strategy = lh.HierarchicalStrategy(group_size=1, block_sync=block_sync)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=strategy,
        max_epochs=EPOCHS,
        callbacks=[measured],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(norm), DataLoader(training, batch_size=32, shuffle=True))
    return torch.tensor(measured.losses[EPOCHS // 2 :]).mean(dim=0)


def measure(seeds: list[int], variants: list[str]) -> None:
    """Train all variants by all seeds. Rank 0 prints a table. All ranks must call it."""
    silence_lightning()
    rows = []
    for variant in variants:
        results = [train(variant, seed) for seed in seeds]
        if torch.distributed.get_rank() == 0:
            columns = [
                f"{of.mean():.3f} ({of.min():.3f} to {of.max():.3f})"
                for of in torch.stack(results).unbind(1)
            ]
            rows.append([variant, *columns])
    if rows:
        print(markdown(("", "loss", "statistics computed anew"), rows))


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    run_module("benchmarks.batchnorm", json.dumps(list(vars(options).values())), ranks=RANKS)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        measure(*json.loads(sys.argv[1]))
    else:
        main()
