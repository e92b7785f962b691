"""Output in which results can be seen: progress and tables, not what libraries say."""

from __future__ import annotations

import logging
import sys
import warnings

from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar

from lightning_hier.callbacks.progress_lines import ProgressLines


def silence_lightning() -> None:
    """Leave out Lightning's greetings and hints, and warnings."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def progress() -> ProgressBar:
    """A bar on a terminal; lines in a file or a pipe, where a bar is thousands of lines."""
    return TQDMProgressBar(leave=False) if sys.stdout.isatty() else ProgressLines()
