"""Tests of the studies, which repeat tables of the papers: runs, verdicts on claims, files."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("espeakng_loader", reason="the example needs the extra 'examples'")
pytest.importorskip("torchmetrics", reason="the example needs the extra 'examples'")

from examples.studies import defaults, page, study, two_tiered  # noqa: E402
from examples.studies.default_tasks import AN4, TASKS  # noqa: E402
from examples.studies.speech import (  # noqa: E402
    EXPERIMENT,
    TWO_STAGE,
    SpeechResult,
    SpeechRun,
    with_data,
)
from examples.studies.study import Row, RowResult, Study, fewer  # noqa: E402


def _row_result(*errors: float) -> RowResult:
    run = SpeechRun(system="gtc")
    values = {"word errors %": errors, "seconds": tuple(-error for error in errors)}
    return RowResult(Row(("x",), run), values, tuple(20.0 for _ in errors))


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((10.0, 11.0, 12.0), (20.0, 21.0, 22.0), "holds"),
        ((20.0, 21.0, 22.0), (10.0, 11.0, 12.0), "does not hold"),
        ((10.0, 12.0, 14.0), (13.0, 11.0, 15.0), "cannot be seen at this size"),
        # Seeds differ more than systems, but runs of the same seed are compared.
        ((10.0, 20.0, 30.0), (11.0, 21.1, 31.05), "holds"),
        # The difference is three standard errors, but three seeds require 4.3.
        ((10.0, 10.0, 10.0), (10.05, 10.2, 10.2), "cannot be seen at this size"),
        ((10.0,), (30.0,), "one seed is not enough"),
    ],
)
def test_claims_are_answered_by_pairs_of_runs_with_the_same_seed(
    first: Any, second: Any, verdict: str
) -> None:
    rows = {("a",): _row_result(*first), ("b",): _row_result(*second)}
    assert fewer(rows, (("a",), ("b",)), "a has fewer").verdict == verdict


def _arguments(folder: Path, **changes: Any) -> argparse.Namespace:
    values = {"name": "two_tiered", "data": None, "out": folder, "tables": None, "seeds": 2}
    values |= {"jobs": 1, "quick": False}
    return argparse.Namespace(**{**values, **changes})


def test_a_study_does_every_run_once_and_writes_table_picture_and_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables share runs: 128 workers in blocks of 10 are in two of them."""
    done: Counter[str] = Counter()

    def fake(self: Any, runs: list[SpeechRun]) -> list[SpeechResult]:
        done.update(repr(run.portable_settings()) for run in runs)
        errors = [0.2 + 0.001 * run.workers + 0.01 * run.seed for run in runs]
        return [
            SpeechResult(
                settings=run.portable_settings(),
                frame_error_rate=error / 2,
                word_error_rate=error,
                steps=9,
                train_seconds=1.0,
            )
            for run, error in zip(runs, errors, strict=True)
        ]

    monkeypatch.setattr(study.RunStore, "results", fake)
    arguments = _arguments(tmp_path, tables=["1", "3"])
    tables = two_tiered.tables(with_data(two_tiered.BASE, arguments))
    Study(tmp_path, EXPERIMENT, seeds=2, jobs=2).train(tables.values())
    # 12 of Table 1, 6 more of Table 2, 2 more of Table 3 and one worker, with two seeds.
    assert (len(done), set(done.values())) == (2 * (12 + 6 + 2 + 1), {1})
    page.write(EXPERIMENT, "Title", tables, arguments)
    text = (tmp_path / "report.md").read_text()
    [line] = [
        line
        for line in text.splitlines()
        if line.startswith("| GTC ") and "| 128 " in line and "±" in line
    ]
    assert "| 33.3 ± 0.7" in line and "| -15.6" in line
    assert "GTC degrades from 64 to 128 workers" in text and "**holds**" in text
    assert "Table 2" not in text and "## Table 3: group size" in text
    rows = list(csv.DictReader((tmp_path / "table_3.csv").open()))
    assert [row["group size"] for row in rows] == ["1", "1", "2", "2", "4", "4", "8", "8"]
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert (tmp_path / "table_1.png").read_bytes().startswith(b"\x89PNG")
    first, third = (line for line in text.splitlines() if line.startswith("Settings: "))
    assert "epochs 16" in first and "block_size 10," in first
    assert "block_size 5 (baseline 10)" in third


def test_table_that_a_study_does_not_have_is_refused_before_training(tmp_path: Path) -> None:
    arguments = _arguments(tmp_path, tables=["1", "4"])
    tables = two_tiered.tables(with_data(two_tiered.BASE, arguments))
    with pytest.raises(SystemExit, match=r"^--tables takes 1, 2, 3, got 4$"):
        page.write(EXPERIMENT, "Title", tables, arguments)
    assert not list(tmp_path.iterdir())


def test_settings_that_a_system_does_not_use_make_no_other_run() -> None:
    base = SpeechRun(system="bmuf_nbm", workers=16)
    assert (
        replace(base, group_size=4, density=0.5, push_period=9).portable_settings()
        == base.portable_settings()
    )
    servers = replace(base, system=TWO_STAGE)
    assert (
        replace(servers, block_size=7, density=0.5).portable_settings()
        == servers.portable_settings()
    )
    assert replace(servers, push_period=9).portable_settings() != servers.portable_settings()
    assert replace(base, block_size=7).portable_settings() != base.portable_settings()
    grouped = replace(base, system="bmuf_gtc")
    assert replace(grouped, group_size=4).portable_settings() != grouped.portable_settings()
    portable = replace(
        base, folder="/elsewhere", corpus_args={"path": "/data/an4"}
    ).portable_settings()
    assert portable["corpus_args"] == {"path": "an4"} and "elsewhere" not in repr(portable)
    assert SpeechRun(**portable).portable_settings() == portable


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "two_tiered",
        "bmuf",
        "across",
        "bmuf_adam",
        "two_stage_asgd",
        "language",
        "low_communication",
    ],
)
def test_the_quick_form_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"examples.studies.{name}", "--quick", "--out", str(tmp_path)]
    for _ in range(2):  # the second run finds all results
        subprocess.run(command, check=True, capture_output=True)
        lines = (tmp_path / "runs.jsonl").read_text().splitlines()
        assert len(lines) == len(set(lines))
        assert "| one seed" not in (tmp_path / "report.md").read_text()
        assert "**one seed is not enough**" in (tmp_path / "report.md").read_text()


def test_a_run_in_the_file_is_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.jsonl"
    arguments = ["--systems", "bmuf_adam", "--workers", "1", "--steps", "4"]
    arguments += ["--out", str(tmp_path)]
    defaults.main(arguments)
    first, lines = capsys.readouterr().out, file.read_text()
    defaults.main(arguments)
    assert file.read_text() == lines
    assert len(lines.splitlines()) == 1
    assert first.endswith(capsys.readouterr().out)


@pytest.mark.parametrize("name", TASKS)
def test_each_task_builds_a_module_and_its_data(name: str) -> None:
    task = TASKS[name]
    if name == "an4" and not Path(AN4).exists():
        pytest.skip(f"needs the data of AN4 in {AN4}")
    module, data = task.build(0, 0.125, 0.5)
    assert module.hparams["learning_rate"] == 0.125
    assert data is not None
    limits = task.trainer_arguments(7, ranks=4)
    assert limits.get("max_steps", 7) == 7
    assert ("max_epochs" in limits) == (task.epochs is not None)
