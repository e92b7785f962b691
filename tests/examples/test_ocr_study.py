"""Tests of the store of text line runs: each run is done once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from examples import run_store
from examples.ocr.run_store import RunStore
from examples.ocr.run_systems import Result, Settings

BASE = Settings(system="adam", learning_rate=0.001)


class FakeRuns:
    """Replaces the processes. The error rate of a run on valid is given by ``errors``."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, int]] = []

    def errors(self, settings: Settings) -> float:
        return settings.learning_rate * 100 + 0.01 * settings.seed

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
        settings=settings.portable_settings(),
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


def test_a_run_is_done_once_also_by_another_store(fake: FakeRuns, tmp_path: Path) -> None:
    runs = [replace(BASE, system="corrected", workers=4, seed=seed) for seed in range(3)]
    RunStore(tmp_path).results([BASE, *runs])
    assert fake.starts == [(1, 1), (4, 3)]
    fake.starts.clear()
    RunStore(tmp_path).results([BASE, *runs])
    assert fake.starts == []
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join(lines[:-2]) + "\n")
    RunStore(tmp_path).results([BASE, *runs])
    assert fake.starts == [(4, 2)]
