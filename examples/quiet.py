"""Output of the examples: progress and results, without messages of libraries."""

from __future__ import annotations

import logging
import sys
import warnings

from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar

from lightning_hier.callbacks.progress_lines import ProgressLines


def silence_lightning() -> None:
    """Suppress all warnings, and all messages of Lightning below errors."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def progress() -> ProgressBar:
    """Return a progress bar for a terminal, or progress lines for a file or a pipe."""
    return TQDMProgressBar(leave=False) if sys.stdout.isatty() else ProgressLines()
