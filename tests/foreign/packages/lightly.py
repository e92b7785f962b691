"""BYOL of lightly: a frozen teacher that the module updates at every step, and BatchNorm."""

from __future__ import annotations

import copy

import lightning.pytorch as pl
import numpy as np
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models import ResNetGenerator
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms.byol_transform import BYOLTransform, BYOLView1Transform, BYOLView2Transform
from lightly.utils.scheduler import cosine_schedule
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.foreign.task import Task

STEPS = 40


class BYOL(pl.LightningModule):
    """The module of lightly's documentation, with a narrower network."""

    def __init__(self) -> None:
        super().__init__()
        network = ResNetGenerator("resnet-9", width=0.125)
        self.backbone = nn.Sequential(*list(network.children())[:-1], nn.AdaptiveAvgPool2d(1))
        self.projection_head = BYOLProjectionHead(64, 64, 32)
        self.prediction_head = BYOLPredictionHead(32, 64, 32)
        self.teacher = copy.deepcopy(self.backbone)
        self.teacher_head = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.teacher)
        deactivate_requires_grad(self.teacher_head)
        self.criterion = NegativeCosineSimilarity()

    def loss(self, views: list[Tensor]) -> Tensor:
        own = [self.prediction_head(self.projection_head(self.features(v))) for v in views]
        with torch.no_grad():
            taught = [self.teacher_head(self.teacher(v).flatten(1)) for v in views]
        return 2 + self.criterion(own[0], taught[1]) + self.criterion(own[1], taught[0])

    def features(self, images: Tensor) -> Tensor:
        return self.backbone(images).flatten(1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        momentum = cosine_schedule(self.global_step, STEPS, 0.9, 1)
        update_momentum(self.backbone, self.teacher, m=momentum)
        update_momentum(self.projection_head, self.teacher_head, m=momentum)
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.06, momentum=0.9)


class Images(Dataset[list[Tensor]]):
    """Two views of each image of coloured waves, by lightly's transforms."""

    def __init__(self, first: int, number: int) -> None:
        self.first, self.number = first, number
        self.transform = BYOLTransform(BYOLView1Transform(24), BYOLView2Transform(24))

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> list[Tensor]:
        random = np.random.default_rng(self.first + index)
        x, y = np.mgrid[0:1:24j, 0:1:24j]
        waves = [np.sin(x * a + y * b + c) for a, b, c in random.uniform(0, 12, (3, 3))]
        image = Image.fromarray((127 * (1 + np.stack(waves, -1))).astype(np.uint8))
        return self.transform(image)


def task() -> Task:
    """Return BYOL and images of waves."""
    train = DataLoader(Images(0, 240), batch_size=8, shuffle=True, drop_last=True)
    val = DataLoader(Images(10_000, 32), batch_size=16)
    return Task(
        module=BYOL(),
        train=train,
        val=val,
        metric="val_loss",
        load=BYOL.load_from_checkpoint,
        steps=STEPS,
    )
