"""Suppresses messages of libraries that a user of the command line cannot act on."""

from __future__ import annotations

import logging
import warnings

# Prefixes of module names. They match the module that the warning points to (stacklevel).
_LIBRARIES = r"(lightning|lightning_utilities|lightning_fabric|torch|torchmetrics|jsonargparse)\."


def silence_libraries(command: str = "fit") -> None:
    """Suppress deprecation warnings between libraries, and Lightning's tips.

    This affects only the process of a command. Warnings about the user's code are still shown.
    Commands that do not train save no checkpoints, so warnings about their directory are omitted.
    """
    if command != "fit":
        warnings.filterwarnings("ignore", message="The dirpath has changed")
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
    for package in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{package}.utilities.rank_zero").addFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()[:10]
