"""Checks that a mistake is the same error on every rank before training."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.ranks import run_ranks

Mistakes = dict[str, tuple[Callable[[], Any], str]]
"""By name: function that makes a mistake on a rank, and expected text of the error."""


def check_mistake(mistake: Callable[..., Any], message: str, *args: Any, ranks: int = 4) -> None:
    """Check that all ranks raise the same ValueError, which ``message`` matches."""
    check_errors(run_ranks(mistake, ranks, *args, expect_failure=True), message)


def check_errors(
    errors: list[str], message: str, kind: str | tuple[str, ...] = "ValueError"
) -> None:
    """Check that all errors are equal, start with ``kind``, and match ``message``."""
    for error in errors:
        assert error.startswith(kind), error
        assert re.search(message, error, re.DOTALL), error
    assert len(set(errors)) == 1


def check_mistakes(module: str, ranks: int = 4, kind: str | tuple[str, ...] = "ValueError") -> None:
    """Check that each of the ``MISTAKES`` of a module is the expected error on every rank."""
    by_rank = errors_by_rank(module, ranks)
    mistakes: Mistakes = import_module(module).MISTAKES
    for name, (_, message) in mistakes.items():
        check_errors([f"{rank[name]}\n({name})" for rank in by_rank], message, kind)


def errors_by_rank(module: str, ranks: int = 4) -> list[dict[str, str]]:
    """Errors of each rank for all ``MISTAKES`` of a module, which are made in one launch."""
    return run_ranks(_errors_of, ranks, module)


def _errors_of(module: str) -> dict[str, str]:
    mistakes: Mistakes = import_module(module).MISTAKES
    errors = {}
    for name, (mistake, _) in mistakes.items():
        try:
            mistake()
            errors[name] = "nothing was raised"
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors
