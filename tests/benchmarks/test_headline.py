"""The README's picture shows what the reports hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.headline import LOSS_SYSTEMS, RATES, STEP_SYSTEMS, loss_ratios, step_ratios
from benchmarks.performance.results import REPORTED, Results
from tests.conftest import REPOSITORY


def test_losses_are_compared_with_ddp_of_the_same_seed() -> None:
    common = {"task": "language", "workers": 4, "steps": 300}
    runs = [
        {**common, "system": system, "seed": seed, "result": loss * (1.0 + seed)}
        for loss, system in enumerate(LOSS_SYSTEMS, start=1)
        for seed in (0, 1)
    ]
    longer = {**common, "steps": 1000, "system": "ddp", "seed": 0, "result": 9.0}
    other = {**common, "task": "ocr", "system": "ddp", "seed": 0, "result": 9.0}
    ratios = loss_ratios([*runs, longer, other])
    assert ratios["ddp"] == [1.0, 1.0]
    assert ratios["one worker"] == pytest.approx([0.5, 0.5])


def test_every_bar_has_been_measured() -> None:
    steps = step_ratios(Results.of(REPORTED))
    assert set(steps) == set(RATES)
    for ratios in steps.values():
        assert len(ratios) == len(STEP_SYSTEMS)
        assert min(ratios) >= 1.0
        assert ratios[0] == max(ratios)  # DDP's, which the picture is about


def test_readme_shows_it() -> None:
    picture = "docs/assets/headline.png"
    assert f"]({picture})" in Path(REPOSITORY / "README.md").read_text()
    assert (REPOSITORY / picture).stat().st_size > 10_000
