"""GANomaly of anomalib: two optimizers in manual optimization, BatchNorm, anomalib's callbacks."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anomalib.data import ImageBatch, ImageItem
from anomalib.engine import Engine
from anomalib.models import Ganomaly
from torch.utils.data import DataLoader, Dataset

from tests.foreign.task import Task


class Generative(Ganomaly):
    """Logs the generator's loss of validation as well."""

    def validation_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self.model.training = True  # only so that it returns what the loss needs
        padded, fake, code, code_of_fake = self.model(batch.image)
        self.model.training = False
        real, of_fake = self.model.discriminator(padded)[0], self.model.discriminator(fake)[0]
        loss = self.generator_loss(code, code_of_fake, padded, fake, real, of_fake)
        self.log("val_loss", loss, batch_size=len(batch.image), sync_dist=True)
        return super().validation_step(batch, *args, **kwargs)


class Images(Dataset[ImageItem]):
    """Images of coloured waves. Every second one of validation has a square that is an anomaly."""

    def __init__(self, first: int, number: int, anomalies: bool) -> None:
        self.first, self.number, self.anomalies = first, number, anomalies

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> ImageItem:
        random = np.random.default_rng(self.first + index)
        x, y = np.mgrid[0:1:32j, 0:1:32j]
        waves = [np.sin(6 * x + 3 * i * y + c) for i, c in enumerate(random.uniform(0, 2, 3))]
        image = torch.from_numpy(np.stack(waves) / 2 + 0.5).float()
        if anomaly := self.anomalies and index % 2 == 1:
            image[:, 8:16, 8:16] = 1 - image[:, 8:16, 8:16]
        return ImageItem(image=image, gt_label=torch.tensor(anomaly), image_path=f"{index}.png")


class RankEngine(Engine):
    """Has a folder for each rank. Ranks that make one at the same time may fail in an Engine."""

    def __init__(self, default_root_dir: Path, **settings: Any) -> None:
        folder = default_root_dir / f"rank{os.environ['RANK']}"
        super().__init__(default_root_dir=folder, **settings)


def task() -> Task:
    """Return GANomaly for small images, and images of waves."""
    settings: dict[str, Any] = {
        "pre_processor": Generative.configure_pre_processor(image_size=(32, 32)),
        "visualizer": False, "batch_size": 8, "n_features": 16, "latent_vec_size": 32, "lr": 2e-3,
    }  # fmt: skip
    return Task(
        module=Generative(**settings),
        train=DataLoader(Images(0, 400, False), 8, shuffle=True, collate_fn=ImageBatch.collate),
        val=DataLoader(Images(1000, 32, True), 8, collate_fn=ImageBatch.collate),
        metric="val_loss",
        load=partial(Generative.load_from_checkpoint, weights_only=False, **settings),
        unused=True,
        trainer=RankEngine,
        steps=80,
    )
