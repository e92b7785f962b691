"""A line recogniser of kraken, as `ketos train` makes it: its configs, data module and Trainer.

python -m examples.recipes.kraken_ocr bmuf_adam

`ketos` itself has no option for a strategy, so that a script takes its place. The lines are drawn:
digits in Pillow's font, each an image beside its transcription (`0.png`, `0.gt.txt`), as yours
would be.
"""

import random
import sys
from pathlib import Path

import lightning.pytorch as pl
from kraken.configs import VGSLRecognitionTrainingConfig, VGSLRecognitionTrainingDataConfig
from kraken.models.convert import convert_models
from kraken.train import KrakenTrainer
from kraken.train.vgsl import VGSLRecognitionDataModule, VGSLRecognitionModel
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image, ImageDraw


def lines(folder, first, number, digits=1):
    """Draw digits, and return the paths of their images."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"{i}.png") for i in range(first, first + number)]
    for i, path in enumerate(paths, first):
        text = "".join(random.Random(i).choices("0123456789", k=digits))
        image = Image.new("L", (20 + 12 * digits, 24), 255)
        ImageDraw.Draw(image).text((4, 4), text, fill=0, font_size=16)
        Path(path).with_suffix(".gt.txt").write_text(text)
        image.save(path)
    return paths


def main(strategy="bmuf_adam", seed=0, epochs=6, folder="outputs/lines"):
    """Train, and convert the checkpoint to a model that `kraken` reads."""
    import lightning_hier  # noqa: F401  # registers the names

    pl.seed_everything(seed, workers=True)
    rank = Path(folder, f"rank{getattr(rank_zero_only, 'rank', 0)}")  # each draws its own copy
    data = VGSLRecognitionTrainingDataConfig(
        training_data=lines(rank, 0, 640), evaluation_data=lines(rank, 1000, 64),
        format_type="path", num_workers=0,
    )  # fmt: skip
    config = VGSLRecognitionTrainingConfig(
        spec="[1,24,0,1 Cr3,3,16 Mp2,2 Cr3,3,32 Mp2,2 S1(1x0)1,3 Lbx48 Do0.1]",
        batch_size=8, quit="fixed", epochs=epochs, lrate=1e-2, warmup=8,
    )  # fmt: skip
    trainer = KrakenTrainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=epochs, min_epochs=None,
        enable_progress_bar=False, enable_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(VGSLRecognitionModel(config), VGSLRecognitionDataModule(data))
    trainer.save_checkpoint("outputs/last.ckpt")
    if trainer.is_global_zero:
        convert_models(["outputs/last.ckpt"], "outputs/digits.safetensors")
        print(f"characters that are right: {trainer.callback_metrics['val_accuracy']:.1%}")
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:2])
