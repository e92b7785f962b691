"""Output of the examples: progress and results, without messages of libraries."""

from __future__ import annotations

import logging
import sys
import warnings

from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar


def silence_lightning() -> None:
    """Suppress all warnings, and all messages of Lightning below errors."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def progress() -> ProgressBar:
    """Return a progress bar, which is redrawn rarely in a file or a pipe."""
    return TQDMProgressBar(leave=False, refresh_rate=1 if sys.stdout.isatty() else 200)
