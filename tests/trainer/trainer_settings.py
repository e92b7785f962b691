"""Settings of a Trainer: a CSV logger, a function that reads its rows, and loss scaling."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision


def logging_to(folder: Path, every: int = 2) -> dict[str, Any]:
    """Settings of a Trainer that logs to a CSV file in the folder."""
    return {"logger": CSVLogger(folder, name="run", version=0), "log_every_n_steps": every}


def logged_rows(folder: Path, column: str) -> list[dict[str, str]]:
    """Rows of that CSV file in which ``column`` has a value."""
    with (folder / "run" / "version_0" / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get(column)]


def scaled(growth_interval: int = 1000) -> dict[str, Any]:
    """Settings of a Trainer in half precision, with a loss scale of 1024 at the start."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=growth_interval)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler)]}
