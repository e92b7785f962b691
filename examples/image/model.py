"""A residual network for small images, trained by SGD with momentum as in psp_sgd 4.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models.resnet import BasicBlock

from examples.image.data_module import Batch
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
        num_classes: int | None = None,
        image_channels: int | None = None,
        channels: Sequence[int] = (16, 32),
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        decay_epochs: Sequence[int] = (30, 60),
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.channels = tuple(channels)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.decay_epochs = tuple(decay_epochs)
        self.take_sizes(num_classes=num_classes, image_channels=image_channels)

    def _build(self, *, num_classes: int, image_channels: int) -> None:
        inputs = self.channels[0]
        layers: list[nn.Module] = [*_convolution(image_channels, inputs, kernel=3), nn.ReLU()]
        for stage, outputs in enumerate(self.channels):
            stride = 2 if stage else 1
            changes = stride > 1 or inputs != outputs
            shortcut = _convolution(inputs, outputs, stride=stride) if changes else None
            layers.append(BasicBlock(inputs, outputs, stride, shortcut))
            inputs = outputs
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))
        self.network = nn.Sequential(*layers, *head)
        for module in self.network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.metrics = nn.ModuleDict()
        for split in ("valid", "test"):
            self.metrics[f"{split}/loss"] = MeanMetric()
            self.metrics[f"{split}/accuracy"] = MulticlassAccuracy(num_classes, average="micro")

    def _sizes_of(self, data: Any) -> dict[str, int]:
        return {"num_classes": data.num_classes, "image_channels": data.image_channels}

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
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=self.decay_epochs)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}

    def _evaluate(self, batch: Batch, split: str) -> None:
        logits, labels = self(batch.images), batch.labels
        losses = functional.cross_entropy(logits, labels, reduction="none")
        for name, values in (("loss", (losses,)), ("accuracy", (logits, labels))):
            metric: Any = self.metrics[f"{split}/{name}"]
            metric.update(*values)
            self.log(f"{split}/{name}", metric, prog_bar=True, batch_size=len(labels))


def _convolution(inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))
