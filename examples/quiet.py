"""A terminal in which a progress bar and a table can be seen."""

from __future__ import annotations

import logging
import warnings


def silence_lightning() -> None:
    """Leave out Lightning's greetings and hints, and warnings."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
