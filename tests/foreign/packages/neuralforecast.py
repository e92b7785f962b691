"""NHITS of neuralforecast, for `pytorch_lightning`: its data module, and a schedule by steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from neuralforecast.models import NHITS
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

from tests.foreign.task import Task

HORIZON, VALIDATION = 12, 24
STEPS = 60


def series(number: int, length: int) -> pd.DataFrame:
    """Return waves of two periods with a trend and noise, as `NeuralForecast.fit` takes them."""
    random, t = np.random.default_rng(1), np.arange(length)
    frames = []
    for i in range(number):
        phase, trend = random.uniform(0, 6), random.normal(0, 0.01)
        noise = random.normal(0, 0.1, length)
        y = np.sin(t / 2 + phase) + np.sin(t / 7 + phase) + trend * t + noise
        frames.append(pd.DataFrame({"unique_id": i, "ds": t, "y": y}))
    return pd.concat(frames)


def load(path: str) -> NHITS:
    """Load a checkpoint, which does not say how much of the series is for validation."""
    module = NHITS.load_from_checkpoint(path, weights_only=False)
    module.val_size = VALIDATION
    return module


def task() -> Task:
    """Return a small model with dropout, and series whose last part is that of validation."""
    module = NHITS(
        h=HORIZON,
        input_size=2 * HORIZON,
        mlp_units=[[32, 32]] * 3,
        dropout_prob_theta=0.1,
        learning_rate=5e-3,
        num_lr_decays=3,
        max_steps=STEPS,
        windows_batch_size=64,
        random_seed=torch.initial_seed(),  # it seeds anew
    )
    # What `NHITS.fit` does. It takes the Trainer's arguments, but not the checkpoint to resume.
    module.val_size = VALIDATION
    dataset = TimeSeriesDataset.from_df(series(64, 120))[0]
    return Task(
        module=module,
        train=TimeSeriesDataModule(dataset, batch_size=4, drop_last=module.drop_last_loader),
        val=None,
        metric="ptl/val_loss",
        load=load,
        trainer=partial(pl.Trainer, val_check_interval=20, check_val_every_n_epoch=None),
        steps=STEPS,
        pickles=True,
    )
