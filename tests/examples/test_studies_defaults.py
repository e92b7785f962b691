"""The study of defaults: what it trains, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchmetrics", reason="the example needs the extra 'examples'")

from examples.studies import defaults  # noqa: E402
from examples.studies.default_tasks import TASKS  # noqa: E402
from examples.studies.defaults import Run, table  # noqa: E402


def test_ratios_are_to_the_first_system_with_the_same_seed() -> None:
    losses = {("ddp", 0): 2.0, ("ddp", 1): 4.0, ("bmuf", 0): 3.0, ("bmuf", 1): 6.0}
    runs = [
        Run(system=system, workers=4, steps=300, seed=seed, result=loss)
        for (system, seed), loss in losses.items()
    ]
    line = next(line for line in table(runs).splitlines() if line.startswith("| bmuf"))
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "bmuf",
        "4.500 ± 2.121",
        "1.500 ± 0.000",
    ]


def test_a_run_in_the_file_is_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.jsonl"
    arguments = ["--systems", "bmuf_adam", "--workers", "2", "--steps", "4", "--results", str(file)]
    defaults.main(arguments)
    first, lines = capsys.readouterr().out, file.read_text()
    defaults.main(arguments)
    assert file.read_text() == lines
    assert len(lines.splitlines()) == 1
    assert first.endswith(capsys.readouterr().out)


@pytest.mark.parametrize("name", TASKS)
def test_each_task_builds_a_module_and_its_data(name: str) -> None:
    task = TASKS[name]
    module, data = task.build(0, 0.125, 0.5)
    assert module.hparams["learning_rate"] == 0.125
    assert data is not None
    limits = task.trainer_arguments(7)
    assert limits.get("max_steps", 7) == 7
    assert ("max_epochs" in limits) == (task.epochs is not None)


def test_each_system_needs_a_rate_if_rates_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        defaults.main(["--systems", "ddp", "bmuf", "--rates", "0.1"])
    assert "--rates takes 2 values, got 1" in capsys.readouterr().err
