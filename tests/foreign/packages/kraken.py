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


class Recogniser(VGSLRecognitionModel):
    """Logs the loss of validation as well."""

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        output, lengths = self.net(batch["image"], batch["seq_lens"])  # probabilities
        output = output.squeeze(2).log().permute(2, 0, 1)
        loss = self.net.criterion(output, batch["target"], lengths, batch["target_lens"])
        self.log("val_loss", loss, batch_size=len(batch["image"]), sync_dist=True)
        super().validation_step(batch, batch_idx)


def lines(first: int, number: int) -> list[Path]:
    """Draw lines of digits, unless they are there, and return their images."""
    LINES.mkdir(parents=True, exist_ok=True)
    paths = [LINES / f"{i}.png" for i in range(first, first + number)]
    for i, path in enumerate(paths, first):
        if path.exists():
            continue
        text = "".join(random.Random(i).choices("0123456789", k=4))
        image = Image.new("L", (48, 24), 255)
        ImageDraw.Draw(image).text((4, 6), text, fill=0)
        path.with_suffix(".gt.txt").write_text(text)
        image.save(own := path.with_suffix(f".{os.getpid()}"), format="png")
        os.replace(own, path)  # other ranks draw at the same time
    return paths


def task() -> Task:
    """Return a convolutional and recurrent network, and lines of four digits."""
    config = VGSLRecognitionTrainingConfig(
        spec="[1,24,0,1 Cr3,3,16 Mp2,2 Cr3,3,32 Mp2,2 S1(1x0)1,3 Lbx48 Do0.1]",
        batch_size=8, quit="fixed", lrate=5e-3, warmup=8,
    )  # fmt: skip
    files = VGSLRecognitionTrainingDataConfig(
        training_data=lines(0, 480), evaluation_data=lines(1000, 64),
        format_type="path", num_workers=0,
    )  # fmt: skip
    data = VGSLRecognitionDataModule(files)
    return Task(
        module=Recogniser(config),
        train=data,
        val=None,
        metric="val_loss",
        load=partial(Recogniser.load_from_checkpoint, weights_only=False),
        trainer=partial(KrakenTrainer, enable_summary=False, min_epochs=None),
        steps=80,
        pickles=True,
    )
