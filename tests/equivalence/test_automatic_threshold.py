"""Tests GTC with automatic thresholds: the density of a run, and equal thresholds on all ranks."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback

from lightning_hier import BMUFGTCStrategy, GTCStrategy
from tests.equivalence.cases import Case, Values, case, fit, identical
from tests.ranks import run_ranks

STEPS = 120
HALF = 60


class DensityAfter(Callback):
    """Reads the density after half of the steps, and the density since then at the end."""

    density = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        if trainer.global_step in (HALF, STEPS):
            self.density = trainer.strategy.metrics()["hier/gtc/density"]


_RUN = {"dense_below": 200, "net": "wide"}
CASES = [
    case("GTC", GTCStrategy, density=0.02, batches=STEPS, **_RUN),
    case("BMUF_GTC", BMUFGTCStrategy, group_size=2, density=0.1, batches=17, **_RUN),
]


def _fit_all(cases: list[Case]) -> dict[str, tuple[Values, float]]:
    """Return the final state of each case, and the density of its second half."""
    watchers = {own.name: DensityAfter() for own in cases}
    return {
        own.name: (fit(own, callbacks=[watchers[own.name]]), watchers[own.name].density)
        for own in cases
    }


Outcomes = list[dict[str, tuple[Values, float]]]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return run_ranks(_fit_all, 4, CASES)


@pytest.mark.parametrize("name", [own.name for own in CASES])
def test_ranks_are_equal_bit_for_bit(name: str, outcomes: Outcomes) -> None:
    for other in outcomes[1:]:
        assert identical(outcomes[0][name][0], other[name][0])


def test_density_is_about_the_wanted_one(outcomes: Outcomes) -> None:
    sent = [own["GTC"][1] for own in outcomes]
    assert sum(sent) / len(sent) == pytest.approx(0.02, rel=0.3)
