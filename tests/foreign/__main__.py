"""Tests packages, each in its environment: `make test-foreign ARGS='lightly kraken'`."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.foreign.environments import PACKAGES, REPOSITORY, python_of


def main() -> None:
    """Run all packages or the named ones. Arguments from the first with a dash on go to pytest."""
    first = next((i for i, text in enumerate(sys.argv) if text.startswith("-")), len(sys.argv))
    names, options = sys.argv[1:first] or list(PACKAGES), sys.argv[first:]
    if unknown := [name for name in names if name not in PACKAGES]:
        raise SystemExit(f"no package {', '.join(unknown)}: there are {', '.join(PACKAGES)}")
    failed = [name for name in names if _run(name, options)]
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


def _run(package: str, options: list[str]) -> int:
    environment = os.environ | {"FOREIGN_PACKAGE": package}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # imports take most of the time otherwise
    tests = ["-m", "pytest", "-m", "", "-n", "0", "tests/foreign", *options]
    return subprocess.run([python_of(package), *tests], env=environment, cwd=REPOSITORY).returncode


if __name__ == "__main__":
    main()
