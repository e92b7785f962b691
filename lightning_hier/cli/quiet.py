"""Lines of libraries that a user of the command line can do nothing about are left out."""

from __future__ import annotations

import logging
import warnings

# Modules, as the start of a name: where the warning points, not where it is raised.
_LIBRARIES = r"(lightning|lightning_utilities|lightning_fabric|torch|torchmetrics|jsonargparse)\."


def silence_libraries(command: str = "fit") -> None:
    """Leave out what libraries deprecate of each other, and Lightning's advertisements.

    Only for the process of a command; a user's own code is warned as before. Commands that do not
    train save no checkpoints: nobody needs to know that their folder is another one.
    """
    if command != "fit":
        warnings.filterwarnings("ignore", message="The dirpath has changed")
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
    for package in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{package}.utilities.rank_zero").addFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()[:10]
