"""Tests of the speech example's demo and study: systems, and runs that are done once.

`.ci/run` runs the demo itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("espeakng_loader", reason="the example needs the extra 'demo'")

from examples import run_store  # noqa: E402
from examples.acoustic import demo  # noqa: E402
from examples.acoustic.run_system import Result, Settings  # noqa: E402
from examples.acoustic.study_an4 import Study  # noqa: E402
from examples.acoustic.systems import SYSTEMS  # noqa: E402
from lightning_hier import BMUF, GTC, HierarchicalStrategy  # noqa: E402

RUNS = [demo.OURS, demo.DDP]


def test_both_systems_are_trained_alike() -> None:
    assert len({(s.epochs, s.batch_frames, s.seed, str(s.corpus_args)) for s in RUNS}) == 1


def result(settings: Settings, errors: float) -> Result:
    return Result(
        settings=asdict(settings),
        frame_error_rate=errors,
        word_error_rate=errors / 2,
        group_bytes=3_000_000,
        across_bytes=1_000_000,
        train_seconds=1.0,
        steps=7,
    )


def test_every_system_has_the_strategy_of_its_name() -> None:
    arguments = {"group_size": 2, "block_size": 5, "density": 0.1, "warmup_steps": 3}
    strategies = {name: system.strategy(**arguments) for name, system in SYSTEMS.items()}
    assert strategies.pop("one_worker") == "auto"
    assert all(isinstance(strategy, HierarchicalStrategy) for strategy in strategies.values())
    two_tiers = strategies["bmuf_gtc"]
    assert isinstance(two_tiers, HierarchicalStrategy)
    assert two_tiers.group_size == 2
    assert two_tiers.gradient_sync == GTC(density=0.1)
    assert two_tiers.block_sync == BMUF(block_size=5)
    assert two_tiers.warmup_steps == 3
    classical = strategies["bmuf_cbm"]
    assert isinstance(classical, HierarchicalStrategy)
    assert classical.block_sync == BMUF(block_size=5, nesterov=False)


def test_study_runs_each_setting_once_also_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, float]] = []

    def fake(module: str, arguments: str, *, ranks: int) -> None:
        job = json.loads(arguments)
        for settings in [Settings(**run) for run in job["runs"]]:
            started.append((settings.system, settings.learning_rate))
            line = asdict(result(settings, errors=abs(settings.learning_rate - 0.25)))
            with Path(job["results"]).open("a") as file:
                file.write(json.dumps(line) + "\n")

    monkeypatch.setattr(run_store, "run_module", fake)
    base = Settings(system="ddp")
    assert Study(tmp_path, base).best_rate("gtc") == 0.25
    assert started == [("gtc", rate) for rate in (1.0, 0.5, 0.25, 0.125)]
    assert Study(tmp_path, base).best_rate("gtc") == 0.25
    assert len(started) == 4
    Study(tmp_path, base).run("gtc", 0.25, seed=1)
    assert len(started) == 5
