"""Tests of the study of defaults: its tasks, and results that are not computed again."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from examples import run_store
from tests.ranks import run_ranks

pytest.importorskip("espeakng_loader", reason="the example needs the extra 'examples'")
pytest.importorskip("torchmetrics", reason="the example needs the extra 'examples'")

from examples.studies import defaults  # noqa: E402
from examples.studies.default_tasks import AN4, TASKS  # noqa: E402


def _on_ranks(module: str, arguments: str, *, ranks: int) -> None:
    run_ranks(_as_main, ranks, module, arguments)


def _as_main(module: str, arguments: str) -> None:
    sys.argv = [module, arguments]
    runpy.run_module(module, run_name="__main__")


def test_a_run_in_the_file_is_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "run_module", _on_ranks)
    file = tmp_path / "runs.jsonl"
    arguments = ["--systems", "bmuf_adam", "--workers", "1", "--steps", "4"]
    arguments += ["--out", str(tmp_path)]
    defaults.main(arguments)
    first, lines = capsys.readouterr().out, file.read_text()
    defaults.main(arguments)
    assert file.read_text() == lines
    assert len(lines.splitlines()) == 1
    assert first.endswith(capsys.readouterr().out)


# Their builds read, or synthesise, whole corpora.
_SLOW = {"acoustic", "an4"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW)) for name in TASKS]
)
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
