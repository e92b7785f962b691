"""Tasks of the study of defaults: a module, its data, and the measure that is compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl

from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.fixed_schedule import FixedScheduleLSTM
from examples.image.digits import Images, ResNetClassifier
from examples.language.data_module import Text
from examples.language.model import LanguageModel
from examples.ocr.data_module import TextLines
from examples.ocr.model import LineRecogniser
from examples.studies.recurrent import RecurrentLanguageModel

ModelAndData = tuple[pl.LightningModule, pl.LightningDataModule]

# Windows in a batch of one worker, and their length. A step of four workers takes 0.1 s on a core.
_BATCH_WINDOWS = 8
_CONTEXT = 64
_HEIGHT = 32  # pixels of a line of text


@dataclass(frozen=True)
class Task:
    """A module with its data.

    Attributes:
        measure: name of the reported metric without that of its split. Smaller values are better.
        unit: name and unit of ``measure``, for the header of the table.
        build: function that creates module and data. Its arguments are the seed, the learning rate
            (None: the default of the task) and the first beta of Adam.
        gradient_clip: maximum norm of a gradient.
        epochs: number of epochs. None: the length of a run is a number of steps.
        eval_batches: number of batches of a split that all ranks evaluate together. None: all
            batches.

    """

    measure: str
    unit: str
    build: Callable[[int, float | None, float], ModelAndData]
    gradient_clip: float = 1.0
    epochs: int | None = None
    eval_batches: int | None = None

    def trainer_arguments(self, steps: int, ranks: int) -> dict[str, Any]:
        """Return arguments of the Trainer: length of the run, validation, gradient clipping."""
        batches = None if self.eval_batches is None else -(-self.eval_batches // ranks)
        if self.epochs is not None:
            return {"gradient_clip_val": self.gradient_clip, "max_epochs": self.epochs}
        return {
            "gradient_clip_val": self.gradient_clip,
            "max_steps": steps,
            "check_val_every_n_epoch": None,
            "val_check_interval": steps,
            "limit_val_batches": batches,
            "limit_test_batches": batches,
        }


def _language(
    seed: int,
    rate: float | None,
    beta1: float,
    *,
    kind: type[LanguageModel] = LanguageModel,
    default: float = 1e-3,
) -> ModelAndData:
    model = kind(
        size="tiny",
        vocabulary=257,
        context=_CONTEXT,
        schedule="constant",
        beta1=beta1,
        learning_rate=default if rate is None else rate,
    )
    data = Text(context=_CONTEXT, batch_windows=_BATCH_WINDOWS, eval_batch_windows=64, seed=seed)
    return model, data


def _digits(seed: int, rate: float | None, beta1: float) -> ModelAndData:
    model = ResNetClassifier(
        learning_rate=0.1 if rate is None else rate, decay_epochs=(15,), weight_decay=0.0
    )
    return model, Images(batch_images=16, seed=seed)


def _acoustic(
    seed: int, rate: float | None, beta1: float, *, default: float = 0.7, **corpus: Any
) -> ModelAndData:
    data = AcousticDataModule(batch_frames=256, seed=seed, **corpus)
    model = FixedScheduleLSTM(
        feature_dim=data.corpus.feature_dim,
        num_senones=len(data.corpus.senones),
        hidden_dim=128,
        num_layers=2,
        learning_rate=default if rate is None else rate,
        schedule_epochs=(16, 6),
    )
    return model, data


def _ocr(seed: int, rate: float | None, beta1: float) -> ModelAndData:
    lines = {"train_lines": 2000, "valid_lines": 100, "test_lines": 120}
    data = TextLines(corpus_args=lines, height=_HEIGHT, batch_lines=4, augment=True, seed=seed)
    model = LineRecogniser(
        height=_HEIGHT,
        learning_rate=2e-3 if rate is None else rate,
        beta1=beta1,
        decay_epochs=(7, 8, 9, 10),
    )
    return model, data


AN4 = "../shared/data/an4_mfcc"
"""Folder of the data, as in examples/acoustic/configs."""

# DDP's rate is that of the report on AN4.
_an4 = partial(_acoustic, default=0.5, corpus="an4", corpus_args={"path": AN4, "delta_orders": 2})
_recurrent = partial(_language, kind=RecurrentLanguageModel, default=2.0)

TASKS = {
    "language": Task("loss", "loss in nats a byte", _language, eval_batches=32),
    "recurrent": Task("loss", "loss in nats a byte", _recurrent, eval_batches=32),
    "acoustic": Task("frame_error_rate", "frame errors", _acoustic, epochs=16),
    "an4": Task("frame_error_rate", "frame errors", _an4, epochs=16),
    "digits": Task("loss", "loss in nats an image", _digits, epochs=20),
    "ocr": Task("cer", "character errors", _ocr, gradient_clip=5.0, epochs=11),
}
