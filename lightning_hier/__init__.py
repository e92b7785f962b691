"""Strategies for PyTorch Lightning that train data-parallel over slow networks.

Importing the package registers the names, so that ``Trainer(strategy="bmuf_gtc")`` works.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any


def _is_command() -> bool:
    """Whether this process is `lightning-hier`, which imports torch only if a command needs it."""
    # Not sys.argv, which is only "-m" while `python -m lightning_hier` imports this file.
    started = sys.orig_argv
    module = started[started.index("-m") + 1] if "-m" in started[:-1] else ""
    return module.split(".")[0] == __name__ or Path(sys.argv[0]).name == "lightning-hier"


if TYPE_CHECKING or not _is_command():
    from lightning_hier.public import *  # noqa: F403 - one list of names, which has __all__
    from lightning_hier.public import __all__ as __all__
else:
    # Importing torch and Lightning takes seconds, and `lightning-hier --help` needs neither.
    def __getattr__(name: str) -> Any:
        """Import the public names at the first access."""
        return getattr(import_module("lightning_hier.public"), name)
