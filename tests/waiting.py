"""Waits for what happens, with a limit, and marks by which processes tell each other of it.

A test that waits for a time instead rests on how fast the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Many times what anything takes on a quick machine: it ends only what would never end.
WAIT_S = 120.0


def wait_until(done: Callable[[], Any], what: str) -> None:
    """Wait, but not for ever."""
    deadline_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline_s, f"waited in vain for {what}"
        time.sleep(0.01)


def leave_mark(folder: Path, mark: str, text: str = "") -> None:
    """Tell other processes of something; what is told is whole when they see it."""
    unfinished = folder / f"{mark}.unfinished"
    unfinished.write_text(text)
    unfinished.rename(folder / mark)


def wait_for_marks(folder: Path, *marks: str) -> None:
    """Wait until others have left all of these marks."""
    wait_until(
        lambda: all((folder / mark).exists() for mark in marks), f"the marks {', '.join(marks)}"
    )


@contextmanager
def nothing_stays_in(folder: Path) -> Iterator[None]:
    """Whether all that comes into a folder in the body of ``with`` goes again.

    Other tests on the same machine may put something there for a moment.
    """
    before = set(folder.iterdir())
    yield
    new = set(folder.iterdir()) - before
    wait_until(lambda: not new & set(folder.iterdir()), f"the end of {new}")
