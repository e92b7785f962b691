"""What cannot be read is named: it stops the run, or is left out with a warning."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, get_args

from lightning.pytorch.utilities import rank_zero_only

log = logging.getLogger(__name__)

OnUnreadable = Literal["error", "skip"]
Problem = tuple[str, str]
"""Name of the line, and why it cannot be used."""

_LISTED = 20


def settle(problems: Sequence[Problem], on_unreadable: OnUnreadable, what: str) -> None:
    """Raise if there are problems, or warn of them.

    Args:
        problems: found.
        on_unreadable: ``"error"`` raises, ``"skip"`` warns; both say how many and name the first.
        what: the lines are, for the message.

    Raises:
        ValueError: if there are problems and ``on_unreadable`` is ``"error"``.
    """
    if on_unreadable not in get_args(OnUnreadable):
        raise ValueError(f"on_unreadable must be 'error' or 'skip', got {on_unreadable!r}")
    if not problems:
        return
    if on_unreadable == "skip":
        rank_zero_only(log.warning)(
            "%d lines left out of %s:%s", len(problems), what, listed(problems)
        )
        return
    raise ValueError(
        f"{len(problems)} lines of {what} cannot be used; mend them, or leave them out with "
        f"on_unreadable='skip':{listed(problems)}"
    )


def listed(problems: Sequence[Problem]) -> str:
    """Return the first problems, one on a row, and how many more there are."""
    rows = [f"{name}: {reason}" for name, reason in problems[:_LISTED]]
    if len(problems) > _LISTED:
        rows.append(f"and {len(problems) - _LISTED} more")
    return "".join(f"\n  {row}" for row in rows)
