"""Runs the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY


def run_python(*args: str, cwd: Path = REPOSITORY, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this repository first in its path, and capture the output."""
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **env},
        capture_output=True,
        text=True,
        timeout=280,
    )
