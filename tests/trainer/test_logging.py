"""Tests the metrics and settings that strategies write to the Trainer's loggers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, WandbLogger

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    BMUF_GTC,
    Net,
    fit,
    fit_on_ranks,
    logged_rows,
    logging_to,
    this_rank,
)

_BMUF_GTC = partial(BMUF_GTC, block_size=3)


def test_columns_of_a_run(tmp_path: Path) -> None:
    metrics = fit_on_ranks(4, _BMUF_GTC, Net, 10, **logging_to(tmp_path))[0].metrics
    rows = logged_rows(tmp_path, "hier/group/payload_bytes")
    # Nothing was sent after the last step, so the last row has no density.
    last = {name: float(value) for name, value in rows[-1].items() if value}
    assert last["hier/group/gradients/calls"] > 0
    assert last["hier/across/models/payload_bytes"] > 0
    assert last["hier/block/update_norm"] > 0
    assert last["hier/block/model_distance"] > 0
    assert last["hier/gtc/residual_norm"] > 0
    assert last["hier/block/blocks"] == 3
    # The total is that of rank 0 and includes the bytes at the end of training.
    assert last["hier/across/payload_bytes"] == metrics["hier/across/payload_bytes"]
    within_blocks = [float(row["hier/across/models/payload_bytes"] or 0) for row in rows]
    assert within_blocks == sorted(within_blocks)
    densities = [float(row["hier/gtc/density"]) for row in rows[:-1]]
    assert all(0.0 < density < 1.0 for density in densities)
    assert rows[-1]["hier/gtc/density"] == ""
    elapsed = [float(row["hier/elapsed_seconds"]) for row in rows]
    waited = [float(row["hier/waited_seconds"]) for row in rows]
    assert 0 < elapsed[0] and elapsed == sorted(elapsed)
    assert all(0 < w < e for w, e in zip(waited, elapsed, strict=True))
    # Columns that start with the first block do not shift earlier values.
    assert rows[0]["hier/block/blocks"] == "" and int(rows[0]["hier/group/gradients/calls"]) > 0
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(steps) and steps[-1] == 10


def test_settings_are_written_beside_the_metrics(tmp_path: Path) -> None:
    fit_on_ranks(4, _BMUF_GTC, Net, 3, ranks_per_node=2, **logging_to(tmp_path))
    written = json.loads((tmp_path / "run" / "version_0" / "lightning_hier.json").read_text())
    expected = {
        "strategy": "bmuf_gtc",
        "ranks": 4,
        "hosts": 2,
        "groups": 2,
        "ranks_per_group": 2,
        "gradient_sync": "GTC",
        "density": 0.2,
        "block_sync": "BMUF",
        "block_size": 3,
    }
    assert expected.items() <= written.items()


def _beside_csv(folder: Path, *loggers: Logger) -> dict[str, Any]:
    return {"logger": [CSVLogger(folder, name="run", version=0), *loggers], "log_every_n_steps": 2}


def _by_wandb(folder: Path) -> Any:
    """Last values and settings in W&B."""
    logger = WandbLogger(save_dir=folder)
    fit(lh.BMUFStrategy(block_size=3), 10, **_beside_csv(folder, logger))
    run: Any = logger.experiment
    return this_rank() == 0 and (dict(run.summary), run.config["hier"])


def _by_mlflow(folder: Path) -> Any:
    """Last values and settings in MLflow, and warnings of a fit that goes on with another block."""
    logger = MLFlowLogger(tracking_uri=f"file:{folder}")
    fit(lh.BMUFStrategy(block_size=3), 10, **_beside_csv(folder, logger))
    again = MLFlowLogger(tracking_uri=f"file:{folder}", run_id=logger.run_id)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(lh.BMUFStrategy(block_size=4), 1, logger=again, log_every_n_steps=2)
    if this_rank() > 0:
        return None
    history = partial(logger.experiment.get_metric_history, logger.run_id)
    data = logger.experiment.get_run(logger.run_id).data
    values = {name: max(history(name), key=lambda v: v.step).value for name in data.metrics}
    settings = {name.removeprefix("hier/"): value for name, value in data.params.items()}
    steps = [value.step for value in history("hier/step/seconds")]
    assert steps == [3, 5, 7, 9], steps  # from the second row on
    assert any("MLFlowLogger did not take" in str(warning.message) for warning in caught)
    return values, settings


@pytest.mark.parametrize(("package", "log"), [("wandb", _by_wandb), ("mlflow", _by_mlflow)])
def test_other_loggers_get_what_csv_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, log: Callable[[Path], Any]
) -> None:
    pytest.importorskip(package)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if package == "mlflow":
        MLFlowLogger(tracking_uri=f"file:{tmp_path}")  # ranks would race to create the store
    values, settings = run_ranks(log, 2, tmp_path, ranks_per_node=1)[0]
    rows = logged_rows(tmp_path, "hier/across/payload_bytes")
    last = {name: float(row[name]) for row in rows for name in row if row[name] and "hier/" in name}
    assert {name: values[name] for name in values if name.startswith("hier/")} == last
    written = json.loads((tmp_path / "run" / "version_0" / "lightning_hier.json").read_text())
    assert {name: str(value) for name, value in settings.items()} == {
        name: str(value) for name, value in written.items()
    }
    # Ranks that are a group of their own wait for nobody in it.
    assert last["hier/across/waited_seconds"] > 0 == last["hier/group/waited_seconds"]
