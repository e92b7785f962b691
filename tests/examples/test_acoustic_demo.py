"""The demo of the speech example: its table, its sentence, its picture, times over links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("espeakng_loader", reason="the example needs the extra 'demo'")

from examples.acoustic import demo, link_times  # noqa: E402
from examples.acoustic.demo_words import header, row, verdict  # noqa: E402
from examples.acoustic.link_times import LinkTimes, times_over_links  # noqa: E402
from examples.acoustic.run_system import Result, Settings  # noqa: E402
from examples.acoustic.step_times import StepTimes, time_steps  # noqa: E402

PNG = b"\x89PNG"
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
    """Seconds of a step of the blocks and of DDP."""
    names = (demo.OURS.system, "ddp")
    pairs = zip(link_times.RATES, (gigabit, slow), strict=True)
    return LinkTimes(
        how="measured",
        seconds={link: dict(zip(names, own, strict=True)) for link, own in pairs},
    )


TIMES = link_times_of((0.05, 0.05), (0.06, 0.26))


def test_rows_show_errors_bytes_and_times_over_links() -> None:
    assert header(TIMES)[-1] == "s over 100 Mbit/s (measured)"
    assert header(replace(TIMES, how="predicted"))[-2] == "s over 1 Gbit/s (predicted)"
    assert row("ours", OURS, TIMES) == ("ours", "24.1%", "2.4%", "1000.0", "300.0", "50", "80")
    # All bytes of DDP count as sent across groups.
    assert row("ddp", DDP, TIMES) == ("ddp", "24.0%", "2.4%", "-", "6000.0", "50", "260")


def test_a_sentence_says_who_wins_by_how_much_and_where_ddp_is_better() -> None:
    sentence = verdict(OURS, DDP, TIMES)
    assert sentence.count(".") == sentence.count("24.") + 2  # one sentence; a factor of 3.2
    assert "24.1% and 24.0% frame errors of bmuf and DDP" in sentence
    assert "bmuf is 3.2 times as fast as DDP over 100 Mbit/s (80 s and 260 s)" in sentence
    assert "neither is faster by 5% over 1 Gbit/s" in sentence and "(measured);" in sentence
    assert sentence.endswith("as here at 1 Gbit/s, where it is as fast and has fewer settings.")


def test_without_namespaces_the_planner_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_times, "missing_means", lambda: "network namespaces need root")
    monkeypatch.setattr(link_times, "_alone", lambda settings: ALONE)
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
    found = time_steps(small)
    assert found.seconds["one_worker"] > 0
    assert found.parameters > 1000


@pytest.mark.slow
@pytest.mark.needs_netns
def test_steps_are_measured_between_emulated_hosts() -> None:
    small = {"corpus_args": {"sentences": 60}, "hidden_dim": 8, "block_size": 2}
    found = times_over_links([replace(run, **small) for run in RUNS])
    assert (found.how, found.why) == ("measured", "")
    assert all(seconds > 0 for own in found.seconds.values() for seconds in own.values())


def test_demo_prints_table_and_sentence_and_draws_the_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Settings] = []

    def fake_launch(settings: Settings) -> Result:
        started.append(settings)
        given = DDP if settings.system == "ddp" else OURS
        return replace(given, settings=asdict(settings))

    monkeypatch.setattr(demo, "launch", fake_launch)
    monkeypatch.setattr(demo, "synthesise", lambda settings: None)
    monkeypatch.setattr(demo, "times_over_links", lambda runs, rates: TIMES)
    monkeypatch.setattr(demo, "PLOT", tmp_path / "demo.png")
    monkeypatch.setattr("sys.argv", ["demo", "--short"])
    demo.main()
    assert [settings.system for settings in started] == [demo.OURS.system, "ddp"]
    equal = {(s.epochs, s.batch_frames, s.seed, str(s.corpus_args)) for s in started}
    assert len(equal) == 1
    printed = capsys.readouterr().out
    assert len(re.findall(r"^\| (?:bmuf|ddp)", printed, re.MULTILINE)) == 2
    assert "times as fast as DDP over 100 Mbit/s" in printed
    assert (tmp_path / "demo.png").read_bytes().startswith(PNG)
