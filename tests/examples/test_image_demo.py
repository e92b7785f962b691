"""The demo of the image example: its systems, its settings, its table, its plot."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from examples import run_store
from examples.image import demo
from examples.image.run_systems import run
from examples.image.runs import RankResult, Result, Settings
from examples.image.systems import SYSTEMS
from tests.ranks import run_ranks

TINY = Settings(
    system="all_reduce",
    model_args={"channels": [2]},
    ranks=2,
    late_rank=1,
    late_seconds=0.02,
    epochs=2,
    batch_images=64,
)
PNG = b"\x89PNG"


def counted(rank: int, **values: float) -> dict[str, float]:
    found = dict.fromkeys(RankResult.__dataclass_fields__, 0.0)
    return found | {"rank": rank, "updates": 10.0, "gradients_per_update": 3.0} | values


def outcome(settings: Settings, **values: object) -> Result:
    waited = (1.0, 2.0, 6.0, 50.0)
    found = Result(
        settings=settings.portable_settings(),
        parameters=1000,
        test_accuracy=0.971,
        curve=[(4.0, 0.5), (8.25, 0.975), (12.0, 0.98)],
        train_seconds=12.4,
        ranks=[
            counted(rank, waited_s=waited[rank], sent_bytes=3_085_000, dropped=float(rank))
            for rank in range(settings.ranks)
        ],
    )
    return replace(found, **values)


def test_a_run_reports_what_came_out() -> None:
    first, second = run_ranks(run, 2, TINY)
    assert first.settings == asdict(TINY)
    assert [accuracy for _, accuracy in first.curve] == [accuracy for _, accuracy in second.curve]
    assert [seconds for seconds, _ in first.curve] == sorted(seconds for seconds, _ in first.curve)
    assert first.curve[-1][0] == first.train_seconds
    assert 0.0 < first.test_accuracy == second.test_accuracy
    # 1197 images on 2 ranks: 10 steps in each of 2 epochs.
    assert first.of_ranks("slept_s") == pytest.approx([0.0, 20 * 0.02])
    assert (first.dropped_gradients, first.used_share) == (0.0, 1.0)
    assert first.ranks == second.ranks
    assert first.sent_bytes > 0
    for rank in first.ranks:
        assert 0 < rank["start_bytes"] <= rank["peak_bytes"]
        assert 0 < rank["median_step_s"] <= rank["longest_step_s"]
    # One thing that JSON can say: the study keeps it in a file.
    assert Result(**json.loads(json.dumps(asdict(first)))) == replace(
        first, curve=[list(point) for point in first.curve]
    )


def test_a_row_shows_fast_ranks_and_the_first_good_epoch() -> None:
    row = demo.row(outcome(Settings(system="all_reduce")))
    assert row == ("synchronous SGD", "12", "8", "97.1%", "75.0%", "2", "3.0", "12.3")
    never = outcome(Settings(system="all_reduce"), curve=[(1.0, 0.2)])
    assert demo.row(never)[2] == "-"


def test_demo_prints_a_line_for_each_system_and_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake_runs(module: str, arguments: str, *, ranks: int) -> None:
        assert (module, ranks) == ("examples.image.run_systems", 4)
        job = json.loads(arguments)
        with Path(job["results"]).open("a") as file:
            for each in job["runs"]:
                file.write(json.dumps(asdict(outcome(Settings(**each)))) + "\n")

    monkeypatch.setattr(run_store, "run_module", fake_runs)
    monkeypatch.setattr(demo, "PLOT", tmp_path / "plots" / "accuracy.png")
    monkeypatch.setattr("sys.argv", ["demo", "--short"])
    demo.main()
    printed = capsys.readouterr().out
    titles = [SYSTEMS[name].title for name in demo.COMPARED]
    assert [printed.count(f"| {title} ") for title in titles] == [1] * len(titles)
    assert (tmp_path / "plots" / "accuracy.png").read_bytes().startswith(PNG)
