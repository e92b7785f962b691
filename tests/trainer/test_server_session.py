"""Tests that metrics of the user can be saved and copied under parameter servers."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer


class _HoldsMetrics(Net):
    """Has a metric in its hyperparameters, and a tracker of metrics."""

    def __init__(self, metric: torchmetrics.Metric) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.tracker = torchmetrics.MetricTracker(metric)

    def on_validation_epoch_start(self) -> None:
        self.tracker.increment()

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.tracker.update(self(batch[0]), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.notes.append(float(self.tracker.compute()))


def _fit_with_metrics(strategy: str, folder: Path) -> float:
    model = _HoldsMetrics(torchmetrics.MeanSquaredError())
    saving = ModelCheckpoint(folder, every_n_train_steps=2)
    trainer = make_trainer(strategy, enable_checkpointing=True, callbacks=[saving])
    trainer.fit(model, loader(4), loader(2))
    copied = deepcopy(model.hparams), deepcopy(model.tracker)
    assert copied[1].compute() == model.tracker.compute()
    return float(model.notes[-1])


@pytest.mark.parametrize("strategy", ["psp", "two_stage_asgd"])
def test_metrics_of_the_user_can_be_saved_and_copied(strategy: str, tmp_path: Path) -> None:
    """Nothing of the strategy is put into them, and they are computed over all ranks."""
    first, second = run_ranks(_fit_with_metrics, 2, strategy, tmp_path)
    assert first == second
    assert list(tmp_path.glob("*.ckpt"))
