"""Train a small residual network on scikit-learn's handwritten digits, as in psp_sgd 4.2.

python -m examples.image.digits --strategy bmuf                  Lightning starts four ranks
torchrun --nproc-per-node 4 -m examples.image.digits --strategy psp
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models.resnet import BasicBlock

import lightning_hier  # noqa: F401  # registers the strategies
from examples.rank_batches import EvenSampler, rank_and_world_size, rank_loader

CLASSES = 10
_SPLITS = {"test": slice(0, 300), "valid": slice(300, 600), "train": slice(600, None)}


class Images(pl.LightningDataModule):
    """The 1797 digits of 8 x 8 pixels: 1197 to train, 300 for validation, 300 to test.

    A batch has the images (B, 1, 8, 8), normalised by the mean and standard deviation of the train
    split, and the labels (B,).

    Every rank has the same number of batches, which an ``EvenSampler`` creates. Set
    ``use_distributed_sampler=False`` in the Trainer, because the data module already distributes
    the batches.

    Args:
        batch_images: maximum number of images in a batch of one rank.
        seed: seed of the order of the batches.
    """

    def __init__(self, batch_images: int = 16, seed: int = 0) -> None:
        super().__init__()
        self.batch_images = batch_images
        self.seed = seed
        self.splits: dict[str, TensorDataset] = {}

    def setup(self, stage: str) -> None:
        """Load the digits, which are installed with scikit-learn."""
        from sklearn.datasets import load_digits  # slow import

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        values = torch.from_numpy(digits.images[order]).float().unsqueeze(1)
        labels = torch.from_numpy(digits.target[order]).long()
        train = values[_SPLITS["train"]]
        images = (values - train.mean()) / train.std(correction=0)
        self.splits = {
            name: TensorDataset(images[part], labels[part]) for name, part in _SPLITS.items()
        }

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this rank, in a different order in each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader("valid")

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader("test")

    def _loader(self, split: str, *, shuffle: bool = False) -> DataLoader[Any]:
        rank, world_size = rank_and_world_size(self.trainer)
        dataset = self.splits[split]
        sampler = EvenSampler(
            len(dataset),
            batch_items=self.batch_images,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler)


class ResNetClassifier(pl.LightningModule):
    """A residual network with cross entropy loss, trained by SGD with a stepwise decay.

    Logged values: ``train/loss`` of the batch of this rank; ``valid/loss``, ``valid/accuracy``,
    ``test/loss`` and ``test/accuracy`` over all images of all ranks.

    The defaults of the optimizer are those of psp_sgd 4.2, except for the learning rate. In the
    paper, it is 0.02 * d * n / 128 for d gradients of mini-batches of n images. With linear
    scaling, set 0.02 * n / 128, because the strategy multiplies it by d.

    Args:
        channels: channels of each stage, a residual block. All stages except the first halve
            height and width.
        learning_rate: learning rate of SGD.
        momentum: momentum of SGD.
        weight_decay: weight decay of SGD.
        decay_epochs: epochs after which the learning rate is multiplied by 0.1.
    """

    def __init__(
        self,
        *,
        channels: Sequence[int] = (16, 32),
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        decay_epochs: Sequence[int] = (30, 60),
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.decay_epochs = tuple(decay_epochs)
        inputs = channels[0]
        layers: list[nn.Module] = [*_convolution(1, inputs, kernel=3), nn.ReLU()]
        for stage, outputs in enumerate(channels):
            stride = 2 if stage else 1
            changes = stride > 1 or inputs != outputs
            shortcut = _convolution(inputs, outputs, stride=stride) if changes else None
            layers.append(BasicBlock(inputs, outputs, stride, shortcut))
            inputs = outputs
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))
        self.network = nn.Sequential(*layers, *head)
        for module in self.network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.metrics = nn.ModuleDict()
        for split in ("valid", "test"):
            self.metrics[f"{split}/loss"] = MeanMetric()
            self.metrics[f"{split}/accuracy"] = MulticlassAccuracy(CLASSES, average="micro")

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (B, 10) of images (B, 1, H, W)."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the mean cross entropy of the batch."""
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        # Without a reduction over ranks, because all ranks would wait for it in each step.
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(labels))
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the loss and the accuracy."""
        self._evaluate(batch, "valid")

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the loss and the accuracy."""
        self._evaluate(batch, "test")

    def configure_optimizers(self) -> Any:
        """Return SGD, with a learning rate that is reduced after each of ``decay_epochs``."""
        optimizer = torch.optim.SGD(
            self.parameters(),
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=self.decay_epochs)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}

    def _evaluate(self, batch: list[Tensor], split: str) -> None:
        images, labels = batch
        logits = self(images)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        for name, values in (("loss", (losses,)), ("accuracy", (logits, labels))):
            metric: Any = self.metrics[f"{split}/{name}"]
            metric.update(*values)
            self.log(f"{split}/{name}", metric, prog_bar=True, batch_size=len(labels))


def _convolution(inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def main() -> None:
    """Train on all ranks, and print loss and accuracy of the test split."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--strategy", default="bmuf", help="name of a strategy")
    parser.add_argument("--ranks", type=int, default=4, help="number of processes")
    parser.add_argument("--epochs", type=int, default=20, help="number of epochs")
    options = parser.parse_args()
    pl.seed_everything(0)
    trainer = pl.Trainer(
        strategy=options.strategy,
        accelerator="cpu",
        devices=options.ranks,
        max_epochs=options.epochs,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
    )
    model, data = ResNetClassifier(decay_epochs=(15, 20)), Images()
    trainer.fit(model, data)
    trainer.test(model, data)


if __name__ == "__main__":
    main()
