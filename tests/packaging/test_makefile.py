"""Tests that the Makefile installs the extras that a command needs, and no others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

ALL = "accelerate,cli,elastic,stateful,examples,bench,docs,dev"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the files that `make` reads, and no environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(REPOSITORY / name, tmp_path / name)
    return tmp_path


def commands(checkout: Path, *arguments: str) -> str:
    """Commands that `make` would run."""
    # `make test` runs these tests. Its flags must not reach the inner make.
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *arguments],
        cwd=checkout,
        env={name: value for name, value in os.environ.items() if name not in outer},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(printed: str) -> list[str]:
    """Extras that the commands install."""
    return re.findall(r"-e '\.\[(.*)\]'", printed)


@pytest.mark.parametrize(
    ("stamps", "command", "extras"),
    [
        ([], "demo", ["demo"]),
        ([], "demo-language", ["demo"]),
        ([], "demo-ocr", ["examples"]),
        ([], "demo-stragglers", ["examples"]),
        ([], "demo-elastic", ["examples,elastic"]),
        ([], "test", [ALL]),
        (["-demo"], "demo-language", []),
        (["-demo"], "demo-ocr", ["examples"]),
        (["-demo"], "test", [ALL]),
        (["-examples", "-demo"], "demo-elastic", ["examples,elastic"]),
        (["", "-elastic", "-examples", "-demo"], "demo-elastic", []),
        (["", "-elastic", "-examples", "-demo"], "test", []),
    ],
)
def test_a_command_installs_what_it_needs_and_is_missing(
    checkout: Path, stamps: list[str], command: str, extras: list[str]
) -> None:
    (checkout / ".venv").mkdir()
    for name in stamps:
        (checkout / ".venv" / f".installed{name}").touch()
    assert installed(commands(checkout, command)) == extras


def test_a_larger_installation_counts_as_the_smaller_ones(checkout: Path) -> None:
    stamps = [f".venv/.installed{name}" for name in ("", "-elastic", "-examples", "-demo")]
    for first, command in enumerate(("install", "demo-elastic", "demo-ocr")):
        assert f"touch {' '.join(stamps[first:])}\n" in commands(checkout, command)


def test_a_changed_version_installs_again(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".installed-demo").touch()
    newer = (checkout / ".venv" / ".installed-demo").stat().st_mtime_ns + 10**9
    os.utime(checkout / "constraints.txt", ns=(newer, newer))
    assert installed(commands(checkout, "demo")) == ["demo"]


def test_complete_environment_is_not_changed(checkout: Path) -> None:
    """The packages of the check are read from the command that `make` runs."""
    environment = Path(sys.executable).parents[1]
    for command in ("demo", "test"):
        printed = commands(checkout, command, f"VENV={environment}")
        assert not installed(printed)
        checked, _, _ = printed.partition(" 2>/dev/null")
        names = re.sub(r".*sys\.argv\[1:\]\]' ", "", checked).split()
        assert len(names) > 5
        assert all(version(name) for name in names)
