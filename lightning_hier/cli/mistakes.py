"""Errors of the user, reported on one screen instead of a traceback."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import dedent
from typing import NoReturn

PROGRAM = "lightning-hier"
# How to install the packages that only some commands need.
INSTALL = "pip install '.[cli]' in the folder of lightning_hier"
TRACEBACK_VARIABLE = "LIGHTNING_HIER_TRACEBACK"
_MOST_LINES = 20  # a terminal shows at least 24
# Lines about types that jsonargparse tried in turn, which hide the line about the user's value.
_NOISE = re.compile(
    r"does not validate against any|subtypes: \[|errors:$|given value( type)?: |"
    r"expected a <class '(str|NoneType)'>\.?( got value: Namespace.*)?$|"
    r"expected a path but .* either not accessible or invalid$",
    re.IGNORECASE,
)


@contextmanager
def mistakes_in_one_screen(applies: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Replace the traceback of an error of the user by a few lines and exit status 2.

    They are ``ValueError``, ``OSError`` and Lightning's ``MisconfigurationException``. Others
    keep their traceback. All errors keep it if ``applies()`` is false or if the environment
    variable ``LIGHTNING_HIER_TRACEBACK`` is set.
    """
    try:
        yield
    except Exception as error:
        if not _is_mistake(error) or not applies() or os.environ.get(TRACEBACK_VARIABLE):
            raise
        # Where it was raised, because the user's own module may have raised it.
        place = traceback.extract_tb(error.__traceback__)[-1]
        end_with(
            str(error) or type(error).__name__,
            f"({place.filename}:{place.lineno}; {TRACEBACK_VARIABLE}=1 shows the traceback)",
        )


def _is_mistake(error: Exception) -> bool:
    if isinstance(error, (ValueError, OSError)):
        return True
    # Imported here, because importing Lightning takes seconds, too long for a mistyped command.
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    return isinstance(error, MisconfigurationException)


def end_with(message: str, *more: str) -> NoReturn:
    """Write a message to stderr, with the rank if there are several, and exit with status 2."""
    lines = plain(message).splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], "..."]
    first = f"{PROGRAM}: error{_on_rank()}: {lines[0] if lines else ''}"
    print("\n".join([first, *lines[1:], *more]), file=sys.stderr)
    raise SystemExit(2)


def _on_rank() -> str:
    """Describe the rank by the environment variables of torchrun, Lightning's launcher or SLURM.

    SLURM is last, because its batch script also has a rank, which all its processes inherit.
    """
    known = os.environ
    if "RANK" not in known and "LOCAL_RANK" in known and known.get("NODE_RANK", "0") != "0":
        # The number of ranks on other hosts is unknown, so the global rank is unknown too.
        return f" on rank {known['LOCAL_RANK']} of host {known['NODE_RANK']}"
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return next((f" on rank {known[name]}" for name in names if name in known), "")


def plain(message: str) -> str:
    """The message without lines that do not help the author of a config, if others remain."""
    lines = message.strip().splitlines()
    kept = [line for line in lines if line.strip() and not _NOISE.match(line.strip(" -"))]
    return dedent("\n".join(kept)).removeprefix("- ") or message
