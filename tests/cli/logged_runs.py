"""Writes folders of runs with given values, in the formats of Lightning's loggers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_hier.callbacks.metrics import SETTINGS_FILE

Row = tuple[int, Mapping[str, float]]


def training(*, bytes_a_step: int, seconds_a_step: float, blocks: bool = False) -> list[Row]:
    """Rows of a run of 40 steps: losses, and metrics of a strategy."""
    rows: list[Row] = []
    for step in range(4, 40, 5):
        rows.append((step, {"train/loss": 3.0 / (step + 1), "epoch": step // 20}))
        counted: dict[str, float] = {
            "hier/elapsed_seconds": seconds_a_step * (step + 1),
            "hier/waited_seconds": 0.2 * seconds_a_step * (step + 1),
            "hier/group/payload_bytes": 1000 * (step + 1),
            "hier/across/payload_bytes": bytes_a_step * (step + 1),
        }
        if blocks and step > 10:
            counted["hier/block/update_norm"] = 1.0 / step
        rows.append((step, counted))
    rows += [(19, {"valid/loss": 0.9, "epoch": 0}), (39, {"valid/loss": 0.4321, "epoch": 1})]
    return rows


def write_csv(folder: Path, rows: Sequence[Row], settings: Mapping[str, Any] | None = None) -> Path:
    """Write the rows with a CSVLogger, and return its folder."""
    logger = CSVLogger(folder.parent, name="", version=folder.name)
    _write(logger, rows)
    if settings is not None:
        (folder / SETTINGS_FILE).write_text(json.dumps(settings))
    return folder


def write_events(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the rows with a TensorBoardLogger, and return its folder."""
    _write(TensorBoardLogger(folder.parent, name="", version=folder.name), rows)
    return folder


def _write(logger: Any, rows: Sequence[Row]) -> None:
    logger.log_hyperparams({"lr": 0.125})
    for step, values in rows:
        logger.log_metrics(values, step=step)
    logger.save()
    logger.finalize("success")
