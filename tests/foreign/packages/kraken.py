"""A line recogniser of kraken: its data module, codec and Trainer, and pickled configs."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

from kraken.configs import VGSLRecognitionTrainingConfig, VGSLRecognitionTrainingDataConfig
from kraken.train.utils import KrakenTrainer
from kraken.train.vgsl import VGSLRecognitionDataModule, VGSLRecognitionModel
from PIL import Image, ImageDraw

from tests.foreign.environments import REPOSITORY
from tests.foreign.task import Task

LINES = REPOSITORY / "outputs" / "foreign" / "lines"


class Lines(VGSLRecognitionDataModule):
    """Can also validate without training."""

    def setup(self, stage: str) -> None:
        super().setup("fit")


class Recogniser(VGSLRecognitionModel):
    """Logs the loss of validation as well, and can validate without training."""

    def setup(self, stage: str) -> None:
        super().setup("fit")

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        output, lengths = self.net(batch["image"], batch["seq_lens"])
        output = output.squeeze(2).log_softmax(1).permute(2, 0, 1)
        loss = self.net.criterion(output, batch["target"], lengths, batch["target_lens"])
        self.log("val_loss", loss, batch_size=len(batch["image"]), sync_dist=True)
        super().validation_step(batch, batch_idx)


def lines(first: int, number: int) -> list[Path]:
    """Draw lines of a digit, unless they are there, and return their images."""
    LINES.mkdir(parents=True, exist_ok=True)
    paths = [LINES / f"{i}.png" for i in range(first, first + number)]
    for i, path in enumerate(paths, first):
        if path.exists():
            continue
        text = "".join(random.Random(i).choices("0123456789", k=1))
        image = Image.new("L", (32, 24), 255)
        ImageDraw.Draw(image).text((4, 6), text, fill=0)
        path.with_suffix(".gt.txt").write_text(text)
        image.save(own := path.with_suffix(f".{os.getpid()}"), format="png")
        os.replace(own, path)  # other ranks draw at the same time
    return paths


def task() -> Task:
    """Return a convolutional and recurrent network, and lines of a digit."""
    config = VGSLRecognitionTrainingConfig(
        spec="[1,24,0,1 Cr3,3,16 Mp2,2 Cr3,3,32 Mp2,2 S1(1x0)1,3 Lbx48 Do0.1]",
        batch_size=8, quit="fixed", lrate=1e-2, warmup=8,
    )  # fmt: skip
    files = VGSLRecognitionTrainingDataConfig(
        training_data=lines(0, 480), evaluation_data=lines(1000, 32),
        format_type="path", num_workers=0,
    )  # fmt: skip
    return Task(
        module=Recogniser(config),
        train=Lines(files),
        val=None,
        metric="val_loss",
        load=partial(Recogniser.load_from_checkpoint, weights_only=False),
        trainer=partial(KrakenTrainer, enable_summary=False, min_epochs=None),
        steps=80,
        pickles=True,
    )
