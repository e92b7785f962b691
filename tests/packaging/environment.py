"""A virtual environment outside the checkout, with the dependencies of the tests' environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class OutsideEnvironment:
    """A venv with the packages of the running interpreter, except an editable installation of ours.

    Packages that are installed in the venv come first. It adds the paths of the running interpreter
    to ``sys.path`` by a ``.pth`` file. Python does not read ``.pth`` files in these paths, so an
    editable installation is not visible.
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
        """Install a wheel without its dependencies, and without a download."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install"]
        _run([*pip, "--no-deps", "--no-index", "--no-input", str(wheel)], self.folder)

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run code in the environment, outside the checkout. A failure shows the output."""
        return _run([str(self.python), "-c", code], self.folder)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done
