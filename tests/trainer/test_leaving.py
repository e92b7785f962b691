"""How a process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("end", "left", "status"), [("well", False, 0), ("fail", True, 1)])
def test_groups_are_destroyed_at_an_ordinary_end_alone(end: str, left: bool, status: int) -> None:
    """A group in which a collective may still be waiting must not be destroyed: that would wait.

    Threads of gloo that are left abort the process if they let go of a Python object in its last
    moments.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.leaving_run", end],
        cwd=_ROOT,
        env={**os.environ, "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert f"groups left: {left} gloo threads left: {left}" in done.stdout
