"""Tests of the speech example's demo and study: tables, sentences, step times, resuming.

`.ci/run` runs the demo itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("espeakng_loader", reason="the example needs the extra 'demo'")

from examples import run_store  # noqa: E402
from examples.acoustic import demo, link_times  # noqa: E402
from examples.acoustic.demo_words import comparison, header, row  # noqa: E402
from examples.acoustic.link_times import LinkTimes, times_over_links  # noqa: E402
from examples.acoustic.run_system import Result, Settings  # noqa: E402
from examples.acoustic.step_times import StepTimes, time_steps  # noqa: E402
from examples.acoustic.study_an4 import Study  # noqa: E402
from examples.acoustic.systems import SYSTEMS  # noqa: E402
from lightning_hier import BMUF, GTC, HierarchicalStrategy  # noqa: E402

RUNS = [demo.OURS, demo.DDP]
ALONE = StepTimes(seconds={"one_worker": 0.03}, parameters=270_000)


def outcome(settings: Settings, errors: float, steps: int = 1000) -> Result:
    is_ddp = settings.system == "ddp"
    return Result(
        settings=asdict(settings),
        frame_error_rate=errors,
        word_error_rate=errors / 10,
        group_bytes=6_000_000_000 if is_ddp else 1_000_000_000,
        across_bytes=0 if is_ddp else 300_000_000,
        train_seconds=60.0,
        steps=steps,
        curve=[(steps // 2, 0.4), (steps, 0.25)],
    )


OURS = outcome(replace(demo.OURS, warmup_steps=100), 0.241)
DDP = outcome(demo.DDP, 0.24)


def link_times_of(gigabit: Sequence[float], slow: Sequence[float]) -> LinkTimes:
    """Seconds of a step of block synchronisation and of DDP."""
    names = (demo.OURS.system, "ddp")
    pairs = zip(link_times.RATES, (gigabit, slow), strict=True)
    return LinkTimes(
        how="measured",
        seconds={link: dict(zip(names, values, strict=True)) for link, values in pairs},
    )


TIMES = link_times_of((0.05, 0.05), (0.06, 0.26))


def test_rows_show_errors_bytes_and_times_over_links() -> None:
    assert header(TIMES)[-1] == "s over 100 Mbit/s (measured)"
    assert header(replace(TIMES, how="predicted"))[-2] == "s over 1 Gbit/s (predicted)"
    assert row("ours", OURS, TIMES) == ("ours", "24.1%", "2.4%", "1000.0", "300.0", "50", "80")
    # All bytes of DDP count as sent across groups.
    assert row("ddp", DDP, TIMES) == ("ddp", "24.0%", "2.4%", "-", "6000.0", "50", "260")


def test_sentence_has_the_winner_the_factor_and_where_ddp_is_better() -> None:
    sentence = comparison(OURS, DDP, TIMES)
    assert sentence.count(".") == sentence.count("24.") + 2  # one sentence; a factor of 3.2
    assert "24.1% and 24.0% frame errors of bmuf and DDP" in sentence
    assert "bmuf is 3.2 times as fast as DDP over 100 Mbit/s (80 s and 260 s)" in sentence
    assert "neither is faster by 5% over 1 Gbit/s" in sentence and "(measured);" in sentence
    assert sentence.endswith("as here at 1 Gbit/s, where it is as fast and has fewer settings.")


def test_both_systems_are_trained_alike() -> None:
    assert len({(s.epochs, s.batch_frames, s.seed, str(s.corpus_args)) for s in RUNS}) == 1


def test_without_namespaces_the_planner_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_times, "missing_requirement", lambda: "network namespaces need root")
    monkeypatch.setattr(link_times, "_measured_on_one_rank", lambda settings: ALONE)
    found = times_over_links(RUNS)
    assert (found.how, found.why) == ("predicted", "network namespaces need root")
    ours, ddp = (found.seconds["100 Mbit/s"][run.system] for run in RUNS)
    # 1.5 times the gradient of 1.08 MB over a link of 11.95 MB/s is 0.136 s.
    assert ddp - ALONE.seconds["one_worker"] > 0.1
    # Every tenth step sends three models at most.
    assert ours < 0.6 * ddp
    # Momentum is averaged with the models, which counts as two more.
    one_model = link_times.predict(replace(demo.OURS, system="bmuf_nbm"), ALONE, 1e8)
    assert ours - one_model > 0.015
    assert found.seconds["1 Gbit/s"]["ddp"] < ddp


def test_steps_of_one_rank_are_timed() -> None:
    small = Settings(
        system="one_worker", corpus_args={"sentences": 40}, hidden_dim=8, batch_frames=256
    )
    times = time_steps(small)
    assert times.seconds["one_worker"] > 0
    assert times.parameters > 1000


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
