"""GTC with thresholds that follow the data: no twin knows them, but all ranks agree on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback

from lightning_hier import BMUFGTCStrategy, GTCStrategy
from tests.equivalence.cases import (
    Case,
    identical,
    make_module,
    make_trainer,
    rank_number,
    state_of,
)
from tests.equivalence.tasks import loader
from tests.equivalence.twins import Values
from tests.ranks import run_ranks

STEPS = 120
SETTLED = 60
DENSITIES = (0.02, 0.1)


@dataclass
class Outcome:
    """Of one rank: its state at the end, and the density of what it sent once settled."""

    final: Values = field(default_factory=dict)
    density: float = 0.0


class DensityAfter(Callback):
    """Reads the density when the thresholds have had time to settle, and again at the end."""

    def __init__(self) -> None:
        self.density = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        if trainer.global_step in (SETTLED, STEPS):
            self.density = trainer.strategy.metrics()["hier/gtc/density"]


def _cases() -> list[Case]:
    gtc = [
        Case(
            name=f"GTC {density}",
            strategy=partial(GTCStrategy, density=density, dense_below=200, warmup_steps=0),
            net="wide",
            batches=STEPS,
        )
        for density in DENSITIES
    ]
    two_tiers = Case(
        name="BMUF_GTC",
        strategy=partial(
            BMUFGTCStrategy,
            group_size=2,
            density=0.1,
            dense_below=200,
            block_size=7,
            warmup_steps=0,
        ),
        net="wide",
        batches=STEPS,
    )
    return [*gtc, two_tiers]


def _fit_all(cases: list[Case]) -> dict[str, Outcome]:
    found = {}
    for case in cases:
        module, watcher = make_module(case, seed=rank_number()), DensityAfter()
        trainer = make_trainer(case, callbacks=[watcher])
        trainer.fit(module, loader(rank_number(), case.batches))
        found[case.name] = Outcome(state_of(module.net), watcher.density)
    return found


Outcomes = list[dict[str, Outcome]]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return run_ranks(_fit_all, 4, _cases())


@pytest.fixture(scope="module")
def outcomes_again() -> Outcomes:
    return run_ranks(_fit_all, 4, _cases()[-1:])


NAMES = pytest.mark.parametrize("name", [case.name for case in _cases()])


@NAMES
def test_all_ranks_end_on_the_same_bits(name: str, outcomes: Outcomes) -> None:
    for other in outcomes[1:]:
        assert identical(outcomes[0][name].final, other[name].final)


def test_a_second_run_ends_on_the_same_bits(outcomes: Outcomes, outcomes_again: Outcomes) -> None:
    assert identical(outcomes[0]["BMUF_GTC"].final, outcomes_again[0]["BMUF_GTC"].final)


@pytest.mark.parametrize("density", DENSITIES)
def test_density_comes_near_the_target(density: float, outcomes: Outcomes) -> None:
    sent = [own[f"GTC {density}"].density for own in outcomes]
    assert sum(sent) / len(sent) == pytest.approx(density, rel=0.3)
