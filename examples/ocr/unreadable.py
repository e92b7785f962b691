"""Errors and warnings for lines that cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, get_args

from lightning.pytorch.utilities import rank_zero_only

log = logging.getLogger(__name__)

OnUnreadable = Literal["error", "skip"]
Problem = tuple[str, str]
"""Name of a line, and the reason why it cannot be used."""

_MAX_LISTED = 20


def report_problems(problems: Sequence[Problem], on_unreadable: OnUnreadable, source: str) -> None:
    """Raise an error or log a warning if there are problems.

    Args:
        problems: names of the lines that cannot be used, with the reasons.
        on_unreadable: ``"error"``: raise an error. ``"skip"``: log a warning. Both messages contain
            the number of problems and the first of them.
        source: source of the lines, for the message.

    Raises:
        ValueError: if there are problems and ``on_unreadable`` is ``"error"``.
    """
    if on_unreadable not in get_args(OnUnreadable):
        raise ValueError(f"on_unreadable must be 'error' or 'skip', got {on_unreadable!r}")
    if not problems:
        return
    if on_unreadable == "skip":
        rank_zero_only(log.warning)(
            "%d lines left out of %s:%s", len(problems), source, list_problems(problems)
        )
        return
    raise ValueError(
        f"{len(problems)} lines of {source} cannot be used; correct them, or leave them out with "
        f"on_unreadable='skip':{list_problems(problems)}"
    )


def list_problems(problems: Sequence[Problem]) -> str:
    """Return the first problems, one per row, and the number of the others."""
    rows = [f"{name}: {reason}" for name, reason in problems[:_MAX_LISTED]]
    if len(problems) > _MAX_LISTED:
        rows.append(f"and {len(problems) - _MAX_LISTED} more")
    return "".join(f"\n  {row}" for row in rows)
