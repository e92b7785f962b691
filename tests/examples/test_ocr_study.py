"""The study of BMUF-Adam: what it runs, what it keeps, what it chooses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from examples import run_store
from examples.ocr.run_store import RunStore
from examples.ocr.run_systems import Result, Settings
from examples.ocr.study_bmuf_adam import candidates, line, rows, sync_row, table, train

BASE = Settings(system="adam", learning_rate=0.001)


class FakeRuns:
    """Stands for the processes: a run's valid errors are those that ``errors`` says."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, int]] = []

    def errors(self, settings: Settings) -> float:
        # Twice the base rate suits synchronous Adam best.
        return abs(settings.learning_rate - 0.002) * 100 + 0.01 * settings.seed

    def __call__(self, module: str, arguments: str, *, ranks: int) -> None:
        assert module == "examples.ocr.run_systems"
        job = json.loads(arguments)
        self.starts.append((ranks, len(job["runs"])))
        with Path(job["results"]).open("a") as file:
            for run in job["runs"]:
                settings = Settings(**run)
                assert settings.ranks == ranks
                file.write(json.dumps(asdict(result(settings, self.errors(settings)))) + "\n")


def result(settings: Settings, cer: float) -> Result:
    return Result(
        settings=settings.anywhere(),
        valid_cer=cer,
        valid_wer=2 * cer,
        test_cer=cer,
        test_wer=2 * cer,
        test_cer_lm=float("nan"),
        test_wer_lm=float("nan"),
        valid_losses=[1.0],
        model_bytes=3_000_000,
        train_seconds=1.0,
        steps=7,
        lines=[],
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    runs = FakeRuns()
    monkeypatch.setattr(run_store, "run_module", runs)
    return runs


def test_a_study_runs_each_setting_once_and_goes_on_where_it_stopped(
    fake: FakeRuns, tmp_path: Path
) -> None:
    train(RunStore(tmp_path), BASE, [4, 8], [0, 1])
    # One worker twice; for 4 and 8 workers three rates of synchronous Adam and 4 settings of
    # BMUF-Adam with 2 seeds; then synchronous Adam with the second seed.
    assert fake.starts == [(1, 2), (4, 11), (4, 1), (8, 11), (8, 1)]
    fake.starts.clear()
    train(RunStore(tmp_path), BASE, [4, 8], [0, 1])
    assert fake.starts == []
    kept = (tmp_path / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join(kept[:-3]) + "\n")
    train(RunStore(tmp_path), BASE, [4, 8], [0, 1])
    assert sum(runs for _, runs in fake.starts) == 3


def test_runs_are_the_same_wherever_the_data_lies(fake: FakeRuns, tmp_path: Path) -> None:
    here, there = (replace(BASE, corpus_args={"path": f"{top}/oldbooks"}) for top in ("/a", "b"))
    other = replace(BASE, corpus_args={"path": "/a/copiste"})
    store = RunStore(tmp_path)
    assert store.results([here]) == store.results([there])
    assert fake.starts == [(1, 1)]
    assert "/a" not in (tmp_path / "runs.jsonl").read_text()
    store.results([other])
    assert len(fake.starts) == 2


def test_synchronous_adam_gets_the_rate_that_suits_it(fake: FakeRuns, tmp_path: Path) -> None:
    assert [c.learning_rate for c in candidates(BASE, 4, 0)] == [0.001, 0.002, 0.004]
    row = sync_row(RunStore(tmp_path), BASE, 4, [0, 1, 2])
    assert [run.learning_rate for run in row] == [0.002] * 3
    assert [run.seed for run in row] == [0, 1, 2]


def test_rows_differ_in_moments_and_beta1_alone() -> None:
    one, *others = rows(BASE, [4], [3])
    assert one == [replace(BASE, workers=1, seed=3)]
    assert [(run.system, run.beta1) for (run,) in others] == [
        ("average", 0.9),
        ("average", 0.5),
        ("corrected", 0.9),
        ("corrected", 0.5),
    ]
    assert {run.learning_rate for (run,) in others} == {0.001}


def test_a_line_holds_mean_and_spread() -> None:
    run = replace(BASE, system="corrected")
    found = line([result(run, 0.1), result(replace(run, seed=1), 0.3)])
    assert found[0] == "BMUF-Adam, corrected moments"
    assert found[4:7] == ("20.0 ± 14.1", "40.0 ± 28.3", "20.0 ± 14.1")


def test_the_table_has_a_line_for_every_system(fake: FakeRuns, tmp_path: Path) -> None:
    text = table(RunStore(tmp_path), BASE, [4, 16], [0, 1])
    assert len(text.splitlines()) == 2 + 1 + 2 * 5
    assert "synchronous Adam" in text
