"""Tests GTC with automatic thresholds: the density of a run, and equal thresholds on all ranks."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback

from lightning_hier import GTCStrategy
from tests.equivalence.cases import Values, case, fit, identical
from tests.ranks import run_ranks

STEPS = 120
HALF = 60


class DensityAfter(Callback):
    """Reads the density after half of the steps, and the density since then at the end."""

    density = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        if trainer.global_step in (HALF, STEPS):
            self.density = trainer.strategy.metrics()["hier/gtc/density"]


RUN = case("GTC", GTCStrategy, density=0.02, batches=STEPS, dense_below=200, net="wide")


def _trained() -> tuple[Values, float]:
    """The final state, and the density of the second half."""
    watcher = DensityAfter()
    return fit(RUN, callbacks=[watcher]), watcher.density


def test_density_is_about_the_wanted_one_and_ranks_are_equal() -> None:
    states, sent = zip(*run_ranks(_trained, 4), strict=True)
    assert all(identical(own, states[0]) for own in states)
    assert sum(sent) / len(sent) == pytest.approx(0.02, rel=0.3)
