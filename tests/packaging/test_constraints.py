"""The tested versions: `make` installs with them on every Python that we support."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.conftest import REPOSITORY

PYTHONS = re.findall(
    r"Programming Language :: Python :: (3\.\d+)", (REPOSITORY / "pyproject.toml").read_text()
)


def _pins(python: str) -> list[Requirement]:
    """What a Python of that version is held to."""
    text = (REPOSITORY / "constraints.txt").read_text()
    lines = [line.partition("#")[0] for line in text.splitlines()]
    every = [Requirement(line) for line in lines if line.strip()]
    here = {"python_version": python}
    return [pin for pin in every if pin.marker is None or pin.marker.evaluate(here)]


def _demands() -> Iterator[tuple[Requirement, SpecifierSet]]:
    """Of the running Python's pins those that are installed, and the Pythons that they run on."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    for pin in _pins(running):
        try:
            found = metadata(pin.name)
        except PackageNotFoundError:
            continue
        if pin.specifier.contains(found["Version"]):
            yield pin, SpecifierSet(found.get("Requires-Python", ""))


@pytest.mark.parametrize("python", PYTHONS)
def test_no_pin_demands_another_python(python: str) -> None:
    """Pip refuses the whole installation for one such pin; without a marker it would hold there."""
    pinned = {str(pin) for pin in _pins(python)}
    known = [(str(pin), pythons) for pin, pythons in _demands() if str(pin) in pinned]
    assert known, "none of what constraints.txt names is installed"
    assert not [pin for pin, pythons in known if not pythons.contains(f"{python}.0")]


@pytest.mark.parametrize("python", PYTHONS)
def test_a_package_has_one_pin(python: str) -> None:
    names = [pin.name for pin in _pins(python)]
    assert len(names) == len(set(names))
