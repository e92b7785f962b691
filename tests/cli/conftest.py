"""For all tests of the command line."""

from __future__ import annotations

import pytest

from lightning_hier.cli import mistakes


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors have no rank, also where a Trainer has left its variables in this process."""
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", mistakes.TRACEBACK_VARIABLE):
        monkeypatch.delenv(name, raising=False)
