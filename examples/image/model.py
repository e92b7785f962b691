"""Residual networks for image classification, trained by SGD with momentum as in psp_sgd 4.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from examples.image.batching import Batch
from examples.image.networks import resnet50, small_resnet
from examples.sized_by_data import SizedByData


class ResNetClassifier(SizedByData):
    """A residual network with cross entropy loss, trained by SGD with a stepwise decay.

    Logged values: ``train/loss`` of the batch of this rank; ``valid/loss``, ``valid/accuracy``,
    ``test/loss`` and ``test/accuracy`` over all images of all ranks.

    The defaults of the optimizer are those of psp_sgd 4.2, except for the learning rate. In the
    paper, it is 0.02 * d * n / 128 for d gradients of mini-batches of n images. With linear
    scaling, set 0.02 * n / 128, because the strategy multiplies it by d.

    Args:
        num_classes: C, number of classes. None: take it from the data.
        image_channels: 1 for grey images, 3 for colour images. None: take it from the data.
        network: ``"resnet50"`` (of torchvision) or ``"small"``.
        channels: channels of each stage of the small network. All stages except the first halve
            height and width.
        blocks: number of residual blocks in each stage of the small network.
        learning_rate: learning rate of SGD.
        momentum: momentum of SGD.
        weight_decay: weight decay of SGD.
        decay_epochs: epochs after which the learning rate is multiplied by ``decay_factor``.
        decay_factor: factor of the learning rate.

    Raises:
        ValueError: if the network is unknown or a number is out of range.
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        image_channels: int | None = None,
        network: Literal["small", "resnet50"] = "small",
        channels: Sequence[int] = (16, 32),
        blocks: int = 1,
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        decay_epochs: Sequence[int] = (30, 60),
        decay_factor: float = 0.1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.decay_epochs = tuple(decay_epochs)
        self.decay_factor = decay_factor
        if network not in ("small", "resnet50"):
            raise ValueError(f"network must be 'small' or 'resnet50', got {network!r}")
        small_args: dict[str, Any] = {"channels": channels, "blocks": blocks}
        self._small_args = small_args if network == "small" else None
        self.take_sizes(num_classes=num_classes, image_channels=image_channels)

    def _build(self, *, num_classes: int, image_channels: int) -> None:
        sizes: dict[str, Any] = {"image_channels": image_channels, "num_classes": num_classes}
        self.network: torch.nn.Module = (
            resnet50(**sizes)
            if self._small_args is None
            else small_resnet(**self._small_args, **sizes)
        )
        metrics: dict[str, torch.nn.Module] = {}
        for split in ("valid", "test"):
            metrics[f"{split}/loss"] = MeanMetric()
            metrics[f"{split}/accuracy"] = MulticlassAccuracy(num_classes, average="micro")
        self.metrics = torch.nn.ModuleDict(metrics)

    def _sizes_of(self, data: Any) -> dict[str, int]:
        corpus = data.corpus
        return {"num_classes": corpus.num_classes, "image_channels": corpus.channels}

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (B, C) of images (B, ``image_channels``, H, W)."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean cross entropy of the batch."""
        loss = functional.cross_entropy(self(batch.images), batch.labels)
        # Without a reduction over ranks, because all ranks would wait for it in each step.
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the accuracy."""
        self._evaluate(batch, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
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
        schedule = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, milestones=list(self.decay_epochs), gamma=self.decay_factor
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}

    def _evaluate(self, batch: Batch, split: str) -> None:
        logits, labels = self(batch.images), batch.labels
        losses = functional.cross_entropy(logits, labels, reduction="none")
        for name, values in (("loss", (losses,)), ("accuracy", (logits, labels))):
            metric: Any = self.metrics[f"{split}/{name}"]
            metric.update(*values)
            self.log(f"{split}/{name}", metric, prog_bar=True, batch_size=len(labels))
