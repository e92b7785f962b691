"""Settings for the tests of the examples."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_arguments_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep LightningCLI from warning that the process has arguments of its own."""
    monkeypatch.setattr("sys.argv", ["train"])
