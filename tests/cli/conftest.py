"""Settings of all tests of the command line."""

from __future__ import annotations

import pytest

from lightning_hier.cli import mistakes


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables of a rank, which a Trainer may have set, so that errors name no rank."""
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", mistakes.TRACEBACK_VARIABLE):
        monkeypatch.delenv(name, raising=False)
