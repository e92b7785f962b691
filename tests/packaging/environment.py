"""A virtual environment outside the checkout, with what the tests' own one has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class OutsideEnvironment:
    """A venv that sees the packages of the running interpreter, and of ours only what it installs.

    Its packages come first. An editable install in the running environment is not seen: a path in
    a ``.pth`` file is added to ``sys.path``, but ``.pth`` files in there are not read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "venv" / "lib" / version / "site-packages"
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (self.site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")

    def install(self, wheel: Path) -> None:
        """Install a wheel by itself, without a download."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install"]
        _run([*pip, "--no-deps", "--no-index", "--no-input", str(wheel)], self.folder)

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run code in the environment, away from the checkout; a failure shows its output."""
        return _run([str(self.python), "-c", code], self.folder)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done
