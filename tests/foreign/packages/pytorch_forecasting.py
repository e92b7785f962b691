"""The temporal fusion transformer of pytorch-forecasting, with its data set and its metrics."""

from __future__ import annotations

from pytorch_forecasting import TemporalFusionTransformer

from examples.recipes.forecaster import forecaster
from tests.foreign.task import Task


def task() -> Task:
    """Return a small transformer, and short series."""
    module, train, val = forecaster()
    return Task(
        module=module,
        train=train,
        val=val,
        metric="val_loss",
        load=TemporalFusionTransformer.load_from_checkpoint,
        steps=50,
        pickles=True,
    )
