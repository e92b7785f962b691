"""The comparison of systems: settings, resuming, tables, and one real run on four ranks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("espeakng_loader", reason="the example needs the extra 'examples'")

from examples.acoustic import study_an4  # noqa: E402
from examples.acoustic.launch import launch  # noqa: E402
from examples.acoustic.run_system import Result, Settings  # noqa: E402
from examples.acoustic.study_an4 import Study  # noqa: E402
from examples.acoustic.systems import SYSTEMS  # noqa: E402
from lightning_hier import BMUF, GTC, HierarchicalStrategy  # noqa: E402


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


def test_every_system_has_the_strategy_that_its_name_says() -> None:
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


def test_study_runs_each_setting_once_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, float]] = []

    def fake(settings: Settings) -> Result:
        started.append((settings.system, settings.learning_rate))
        return result(settings, errors=abs(settings.learning_rate - 0.25))

    monkeypatch.setattr(study_an4, "launch", fake)
    base = Settings(system="ddp")
    assert Study(tmp_path, base).best_rate("gtc") == 0.25
    assert started == [("gtc", rate) for rate in (1.0, 0.5, 0.25, 0.125)]
    assert Study(tmp_path, base).best_rate("gtc") == 0.25
    assert len(started) == 4
    Study(tmp_path, base).run(system="gtc", learning_rate=0.25, seed=1)
    assert len(started) == 5


@pytest.mark.slow
def test_a_real_run_reports_errors_bytes_and_steps(tmp_path: Path) -> None:
    """Four ranks, two groups, started as the demo starts them: CI runs the demo itself."""
    outcome = launch(
        Settings(
            system="bmuf_gtc",
            corpus_args={"sentences": 40},
            epochs=1,
            decay_epochs=0,
            hidden_dim=16,
            block_size=2,
            batch_frames=256,
            log_dir=str(tmp_path),
        )
    )
    assert 0.0 < outcome.frame_error_rate < 1.0
    assert outcome.steps >= 2
    assert outcome.group_bytes > 0
    assert outcome.across_bytes > 0
    assert list(tmp_path.rglob("events.out.tfevents*"))
