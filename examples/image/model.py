"""Residual networks that classify images, trained by SGD with momentum as in psp_sgd 4.2."""

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
    """A residual network with cross entropy, accuracy, and SGD whose rate falls in steps.

    Logged: ``train/loss`` of this rank's batch; ``valid/loss``, ``valid/accuracy``, ``test/loss``
    and ``test/accuracy`` over all images of all ranks.

    The defaults of the optimizer are those of psp_sgd 4.2, but for the learning rate. There it is
    0.02 * d * n / 128 for d gradients of mini-batches of n images: under linear scaling give
    0.02 * n / 128, since the strategy multiplies by d.

    Args:
        num_classes: C; None takes it from the data.
        image_channels: 1 for grey images, 3 for coloured ones; None takes it from the data.
        network: ``"resnet50"``, torchvision's, or ``"small"``.
        channels: of each stage of the small one; each but the first halves height and width.
        blocks: residual blocks of a stage of the small one.
        learning_rate: of SGD.
        momentum: likewise.
        weight_decay: likewise.
        decay_epochs: after these epochs the learning rate is multiplied by ``decay_factor``.
        decay_factor: see there.

    Raises:
        ValueError: an unknown network, or numbers that make none.
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
        small: dict[str, Any] = {"channels": channels, "blocks": blocks}
        self._small = small if network == "small" else None
        self.take_sizes(num_classes=num_classes, image_channels=image_channels)

    def _build(self, *, num_classes: int, image_channels: int) -> None:
        sizes: dict[str, Any] = {"image_channels": image_channels, "num_classes": num_classes}
        self.network: torch.nn.Module = (
            resnet50(**sizes) if self._small is None else small_resnet(**self._small, **sizes)
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
        """Logits (B, C) of images (B, channels, H, W)."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean cross entropy of the batch."""
        loss = functional.cross_entropy(self(batch.images), batch.labels)
        # Only this rank's value: a reduction here would make all ranks wait for each other.
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count loss and accuracy."""
        self._score(batch, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count loss and accuracy."""
        self._score(batch, "test")

    def configure_optimizers(self) -> Any:
        """SGD with momentum; its rate falls after each of ``decay_epochs``."""
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

    def _score(self, batch: Batch, split: str) -> None:
        logits, labels = self(batch.images), batch.labels
        losses = functional.cross_entropy(logits, labels, reduction="none")
        for name, values in (("loss", (losses,)), ("accuracy", (logits, labels))):
            metric: Any = self.metrics[f"{split}/{name}"]
            metric.update(*values)
            self.log(f"{split}/{name}", metric, prog_bar=True, batch_size=len(labels))
