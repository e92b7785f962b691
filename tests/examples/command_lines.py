"""Runs command lines of the examples in their tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_hier.cli.lightning_cli import TrainingCLI

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def small_run(config: Path, folder: Path, *more: str, command: str = "fit") -> list[str]:
    """Arguments of a quiet run of one epoch by a config, with ``more`` to make it small."""
    return [
        command,
        f"--config={config}",
        f"--trainer.logger.init_args.save_dir={folder}",
        "--trainer.max_epochs=1",
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
        *more,
    ]


def run(args: list[str]) -> TrainingCLI:
    """Run a command line in this process."""
    cli = TrainingCLI(args)
    cli.run()
    return cli


def printed_config(config: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The parsed config, with all defaults. The Trainer must not add a distributed sampler."""
    with pytest.raises(SystemExit) as stop:
        TrainingCLI(["fit", f"--config={config}", "--print_config"])
    assert stop.value.code == 0
    printed: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert printed["trainer"]["use_distributed_sampler"] is False
    return printed


def strategy_of(printed: dict[str, Any]) -> str:
    """Name or class path of the strategy of a config."""
    strategy = printed["trainer"]["strategy"]
    return str(strategy if isinstance(strategy, str) else strategy["class_path"])
