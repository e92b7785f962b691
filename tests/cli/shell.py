"""The command line as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY


def run_python(*args: str, cwd: Path = REPOSITORY, **env: str) -> subprocess.CompletedProcess[str]:
    """What a Python process says that finds this repository's package first."""
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **env},
        capture_output=True,
        text=True,
        timeout=280,
    )
