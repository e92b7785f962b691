"""The temporal fusion transformer of pytorch-forecasting, with its data set and its loaders.

python -m examples.recipes.forecaster bmuf_adam
"""

import sys

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.metrics import QuantileLoss


def series(number=8, length=150):
    """Series with a period of 8 hours and a level of their own."""
    random, time, frames = np.random.default_rng(5), np.arange(length), []
    for i in range(number):
        values = 2 + i + np.sin(time * 2 * np.pi / 8 + i) + random.normal(0, 0.1, length)
        frames.append(pd.DataFrame({"time": time, "hour": time % 8, "of": str(i), "y": values}))
    return pd.concat(frames, ignore_index=True)


def forecaster():
    """A small transformer, and loaders of the first 120 hours and of those that follow."""
    frame = series()
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
    module = TemporalFusionTransformer.from_dataset(
        data, hidden_size=8, attention_head_size=2, dropout=0.1, learning_rate=0.02,
        loss=QuantileLoss(), optimizer="adam", log_interval=-1,
    )  # fmt: skip
    val = TimeSeriesDataSet.from_dataset(data, frame, min_prediction_idx=120)
    train = data.to_dataloader(train=True, batch_size=32, num_workers=0)
    return module, train, val.to_dataloader(train=False, batch_size=64, num_workers=0)


def main(strategy="bmuf_adam", seed=0, steps=60):
    """Train, and save what plain Lightning loads."""
    import lightning_hier  # noqa: F401  # registers the names

    pl.seed_everything(seed, workers=True)
    module, train, val = forecaster()
    trainer = pl.Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_steps=steps, gradient_clip_val=0.1
    )
    trainer.fit(module, train, val)
    trainer.validate(module, val)
    trainer.save_checkpoint("outputs/forecaster.ckpt")
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:2])
