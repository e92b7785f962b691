"""Output of the examples: progress and results, without messages of libraries."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar


def silence_lightning() -> None:
    """Suppress all warnings, and all messages of Lightning below errors."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_trainer(strategy: Any = "auto", **settings: Any) -> pl.Trainer:
    """Create a Trainer on the CPU without files or output. Data divide themselves among ranks."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "strategy": strategy,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(**{**quiet, **settings})


def progress() -> ProgressBar:
    """Return a progress bar, which is redrawn rarely in a file or a pipe."""
    return TQDMProgressBar(leave=False, refresh_rate=1 if sys.stdout.isatty() else 200)
