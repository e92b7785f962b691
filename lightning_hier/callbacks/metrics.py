"""Logs the metrics of a strategy to all loggers of the Trainer."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from lightning_hier.callbacks.packages import both
from lightning_hier.callbacks.tensorboard_layout import layout
from lightning_hier.comm.traffic import TIERS

# File in the directory of a logger with the name and the settings of the strategy.
SETTINGS_FILE = "lightning_hier.json"

# Totals whose increase by step is logged too, so that runs can be compared without a calculation.
_BY_STEP = {"hier/elapsed_seconds": "hier/step/seconds"} | {
    f"hier/{tier}/{total}": f"hier/step/{tier}/{total}"
    for tier in TIERS
    for total in ("payload_bytes", "waited_seconds")
}


class HierarchyMetrics(Callback):
    """Logs the values of rank 0 every ``log_every_n_steps`` steps and at the end of training.

    It adds ``hier/elapsed_seconds``, the time since training started in this process, and
    ``hier/step/...``, the mean increase of totals in each step since the previous row. It writes
    the settings of the strategy to ``lightning_hier.json`` in the directory of each logger, or to
    the hyperparameters of a logger without one, and the layout of its charts once in this process
    to each TensorBoardLogger.

    Args:
        metrics: returns values by name.
        describe: returns settings by name, as JSON.

    """

    def __init__(
        self,
        metrics: Callable[[], dict[str, float]],
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        self._metrics = metrics
        self._describe = describe
        self._arranged: list[TensorBoardLogger] = []
        self._begun_s = 0.0
        self._previous: tuple[int, dict[str, float]] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock, and write settings and layout."""
        self._begun_s = time.perf_counter()
        self._previous = None
        if not trainer.is_global_zero:
            return
        settings = self._describe()
        # A set, because several loggers may share a directory. Loggers of web services have none.
        for folder in {logger.log_dir for logger in trainer.loggers if logger.log_dir}:
            _write_settings(folder, settings)
        for logger in trainer.loggers:
            if not logger.log_dir:
                _log_settings(logger, settings)
        for logger in trainer.loggers:
            # Once, because every call writes another layout into the event file.
            if isinstance(logger, both(TensorBoardLogger)) and logger not in self._arranged:
                logger.experiment.add_custom_scalars(layout(settings))
                self._arranged.append(logger)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Log if Lightning logs at this batch."""
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        # Lightning counts this step when the hooks of its end have been called.
        if every and ((_step(trainer) + 1) % every == 0 or trainer.should_stop):
            self._log(trainer, by_step=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the totals of the run."""
        # Without means, because its step is one more after the same number of steps.
        self._log(trainer, by_step=False)

    def _log(self, trainer: pl.Trainer, *, by_step: bool) -> None:
        if trainer.is_global_zero and trainer.loggers:
            step = _step(trainer)
            # Once for all loggers, because reading the density resets it.
            metrics = self._metrics()
            metrics["hier/elapsed_seconds"] = time.perf_counter() - self._begun_s
            if by_step:
                metrics |= self._means(step, metrics)
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)
                logger.save()

    def _means(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Mean increase of totals in each step since the previous row, from the second row on."""
        before, totals = self._previous or (step, metrics)
        # With accumulation, every batch of a step that is logged has a row.
        if step == before:
            self._previous = (before, totals)
            return {}
        self._previous = (step, metrics)
        return {
            name: (metrics[total] - totals.get(total, 0.0)) / (step - before)
            for total, name in _BY_STEP.items()
            if total in metrics
        }


def _step(trainer: pl.Trainer) -> int:
    """Lightning's step of all logged values. ``global_step`` counts those of all optimizers."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _write_settings(folder: str, settings: dict[str, Any]) -> None:
    files = get_filesystem(folder)
    files.makedirs(folder, exist_ok=True)
    with files.open(os.path.join(folder, SETTINGS_FILE), "w") as file:
        json.dump(settings, file, indent=2)


def _log_settings(logger: Logger, settings: dict[str, Any]) -> None:
    """Log settings as hyperparameters ``hier/...``."""
    try:
        logger.log_hyperparams({"hier": settings})
    except Exception as error:  # a type of MLflow, which may not be installed
        warnings.warn(
            f"{type(logger).__name__} did not take the settings of the strategy: {error}. MLflow "
            "keeps the first value of a run: this one is a run with other settings",
            stacklevel=2,
        )
