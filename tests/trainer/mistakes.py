"""What every mistake must come to that is found before training."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.ranks import run_ranks

Mistakes = dict[str, tuple[Callable[[], Any], str]]
"""By name: what makes a mistake on a rank, and what is found in the error."""


def check_mistake(mistake: Callable[..., Any], message: str, *args: Any, ranks: int = 4) -> None:
    """Ranks make ``mistake``: all raise the same ValueError, in which ``message`` is found."""
    check_errors(run_ranks(mistake, ranks, *args, expect_failure=True), message)


def check_errors(errors: list[str], message: str, kind: str = "ValueError") -> None:
    """All ranks raise the same error, of a kind, in which ``message`` is found."""
    for error in errors:
        assert error.startswith(kind), error
        assert re.search(message, error, re.DOTALL), error
    assert len(set(errors)) == 1


def errors_by_rank(module: str, ranks: int = 4) -> list[dict[str, str]]:
    """What each rank raises for each of a module's ``MISTAKES``, all made in one launch."""
    return run_ranks(_errors_of, ranks, module)


def _errors_of(module: str) -> dict[str, str]:
    mistakes: Mistakes = import_module(module).MISTAKES
    found = {}
    for name, (mistake, _) in mistakes.items():
        try:
            mistake()
            found[name] = "nothing was raised"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
