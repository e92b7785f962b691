"""Waits for events with a time limit, and marks: files by which processes signal events.

A test that waits for a fixed time instead depends on the speed of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Many times as long as any event takes. It only ends waits that would never end.
WAIT_S = 120.0


def wait_until(done: Callable[[], Any], what: str) -> None:
    """Wait until ``done`` returns true. Fail after the time limit with ``what`` in the message."""
    deadline_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline_s, f"timed out waiting for {what}"
        time.sleep(0.01)


def leave_mark(folder: Path, mark: str, text: str = "") -> None:
    """Signal an event to other processes. The text of the file is complete when it appears."""
    unfinished = folder / f"{mark}.unfinished"
    unfinished.write_text(text)
    unfinished.rename(folder / mark)


def wait_for_marks(folder: Path, *marks: str) -> None:
    """Wait until other processes have left all of these marks."""
    wait_until(
        lambda: all((folder / mark).exists() for mark in marks), f"the marks {', '.join(marks)}"
    )


@contextmanager
def nothing_stays_in(folder: Path) -> Iterator[None]:
    """Check that files which appear in a folder in the body of ``with`` are removed again.

    Waits for it, because other tests on the same machine may use the folder for a moment.
    """
    before = set(folder.iterdir())
    yield
    new = set(folder.iterdir()) - before
    wait_until(lambda: not new & set(folder.iterdir()), f"the end of {new}")
