"""What every mistake must come to that is found before training."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.ranks import run_ranks


def check_mistake(mistake: Callable[[], None], message: str) -> None:
    """Four ranks make ``mistake``: all raise the same ValueError, in which ``message`` is found."""
    errors = run_ranks(mistake, 4, expect_failure=True)
    for error in errors:
        assert error.startswith("ValueError"), error
        assert re.search(message, error, re.DOTALL), error
    assert len(set(errors)) == 1
