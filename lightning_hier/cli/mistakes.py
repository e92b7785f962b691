"""What the user got wrong, said in one screen instead of a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from lightning_hier.cli.commands import PROGRAM
from lightning_hier.cli.wording import plain

TRACEBACK_VARIABLE = "LIGHTNING_HIER_TRACEBACK"
_MOST_LINES = 20


@contextmanager
def mistakes_in_one_screen(applies: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """End the process with status 2 and a few lines for an error that is the user's.

    Those are ``ValueError``, ``OSError`` and Lightning's ``MisconfigurationException``. All others
    go on with their traceback, and so do these where ``applies()`` says no, or where the variable
    ``LIGHTNING_HIER_TRACEBACK`` is set.
    """
    try:
        yield
    except Exception as error:
        if not _is_mistake(error) or not applies() or os.environ.get(TRACEBACK_VARIABLE):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        end_with(
            str(error) or type(error).__name__,
            f"({place.filename}:{place.lineno}; {TRACEBACK_VARIABLE}=1 shows the whole way there)",
        )


def _is_mistake(error: Exception) -> bool:
    # Here, as importing Lightning takes seconds, which a mistyped command should not.
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    return isinstance(error, (ValueError, OSError, MisconfigurationException))


def end_with(message: str, *more: str) -> NoReturn:
    """Write a message to stderr, with the rank where there are several, and end with status 2."""
    lines = plain(message).splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], "..."]
    first = f"{PROGRAM}: error{_on_rank()}: {lines[0] if lines else ''}"
    print("\n".join([first, *lines[1:], *more]), file=sys.stderr)
    raise SystemExit(2)


def _on_rank() -> str:
    """Which rank this is by the variables of torchrun, Lightning's own launcher or SLURM.

    SLURM's comes last: a batch script has one too, and hands it on to all ranks that it starts.
    """
    told = os.environ
    if "RANK" not in told and "LOCAL_RANK" in told and told.get("NODE_RANK", "0") != "0":
        # How many ranks the hosts before this one have is not known here.
        return f" on rank {told['LOCAL_RANK']} of host {told['NODE_RANK']}"
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return next((f" on rank {told[name]}" for name in names if name in told), "")
