"""A convolutional network of darts, for `pytorch_lightning`: its own `fit`, dropout, metrics."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from darts import TimeSeries
from darts.models import TCNModel
from torchmetrics import MeanAbsoluteError

from tests.foreign.task import Task


def series(number: int, length: int, seed: int) -> list[TimeSeries]:
    """Return waves of two periods with noise."""
    random, t = np.random.default_rng(seed), np.arange(length)
    phases, noise = random.uniform(0, 6, (number, 1)), random.normal(0, 0.1, (number, length))
    waves = np.sin(t / 2 + phases) + np.sin(t / 7 + phases) + noise
    return [TimeSeries.from_values(wave.astype(np.float32)) for wave in waves]


TRAIN, VAL = series(20, 60, seed=1), series(4, 60, seed=2)


class ModelTrainer:
    """Trains by `TCNModel.fit`, which takes the Trainer's arguments from the model."""

    def __init__(self, model: TCNModel, max_epochs: int, **settings: Any) -> None:
        self.model = model
        model.n_epochs = max_epochs
        # As `pl_trainer_kwargs` of the model, which does not save by default.
        model.trainer_params |= settings | {"enable_checkpointing": True}

    def fit(self, *_: Any, ckpt_path: Path | None) -> None:
        self.model.load_ckpt_path = ckpt_path  # as after `TCNModel.load_from_checkpoint`
        self.model.fit(TRAIN, val_series=VAL)


def task() -> Task:
    """Return a small network, which darts makes with its data module when it sees the series."""
    model = TCNModel(
        input_chunk_length=24, output_chunk_length=12, num_filters=8, dropout=0.1, weight_norm=True,
        torch_metrics=MeanAbsoluteError(), batch_size=8, optimizer_kwargs={"lr": 5e-3}, n_epochs=0,
        random_state=torch.initial_seed(), pl_trainer_kwargs={"accelerator": "cpu"},
    )  # fmt: skip
    model.fit(TRAIN, val_series=VAL, verbose=False)
    return Task(
        module=model.model,
        train=model.trainer.datamodule,
        val=None,
        metric="val_loss",
        load=partial(type(model.model).load_from_checkpoint, weights_only=False),
        trainer=partial(ModelTrainer, model),
    )
