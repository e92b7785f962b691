"""The temporal fusion transformer of pytorch-forecasting, with its data set and its metrics."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.metrics import QuantileLoss

from tests.foreign.task import Task


def series(number: int, length: int) -> pd.DataFrame:
    """Return series with a period of 8 hours and a level of their own."""
    random = np.random.default_rng(5)
    time = np.arange(length)
    frames = []
    for i in range(number):
        values = 2 + i + np.sin(time * 2 * np.pi / 8 + i) + random.normal(0, 0.1, length)
        frames.append(pd.DataFrame({"time": time, "hour": time % 8, "of": str(i), "y": values}))
    return pd.concat(frames, ignore_index=True)


def task() -> Task:
    """Return a small transformer, and short series."""
    frame = series(number=8, length=150)
    data = TimeSeriesDataSet(
        frame[frame.time < 120],
        time_idx="time",
        target="y",
        group_ids=["of"],
        max_encoder_length=16,
        max_prediction_length=4,
        static_categoricals=["of"],
        time_varying_known_reals=["hour"],
        time_varying_unknown_reals=["y"],
    )
    val = TimeSeriesDataSet.from_dataset(data, frame, min_prediction_idx=120)
    module = TemporalFusionTransformer.from_dataset(
        data, hidden_size=8, attention_head_size=2, dropout=0.1, learning_rate=0.02,
        loss=QuantileLoss(), optimizer="adam", log_interval=-1,
    )  # fmt: skip
    return Task(
        module=module,
        train=data.to_dataloader(train=True, batch_size=32, num_workers=0),
        val=val.to_dataloader(train=False, batch_size=64, num_workers=0),
        metric="val_loss",
        load=TemporalFusionTransformer.load_from_checkpoint,
        steps=50,
        pickles=True,
    )
