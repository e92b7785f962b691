"""docs/compatibility.md gives allowed and tested versions, and all private names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

from lightning_hier.strategies.private_names import OF_INSTANCES, OF_MODULES, OF_TRAINER
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "compatibility.md").read_text()


def _rows(holders: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for holder, names in holders.items():
        yield from (f"| `{holder}.{name}` | {use} |" for name, use in names.items())


ROWS = [*_rows({"Trainer": OF_TRAINER}), *_rows(OF_MODULES), *_rows(OF_INSTANCES)]


def test_page_lists_every_private_name_with_its_use_and_no_other() -> None:
    found = [
        line for line in PAGE.splitlines() if re.match(r"\| `(Trainer|lightning|torch)\.", line)
    ]
    assert found == ROWS, "write them down in this order:\n" + "\n".join(ROWS)


@pytest.mark.parametrize("package", ["torch", "lightning"])
def test_page_gives_the_versions_that_are_allowed_and_pinned(package: str) -> None:
    (row,) = re.findall(rf"^\| {package} \| `(.+)` \| (.+) \|$", PAGE, re.M | re.I)
    project = (REPOSITORY / "pyproject.toml").read_text()
    (allowed,) = re.findall(
        rf'^    "{package}([>=].+)",$', project.partition("[project.opt")[0], re.M
    )
    (pinned,) = re.findall(
        rf"^{package}==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.M
    )
    assert row == (allowed, pinned)


def test_page_gives_the_versions_of_python() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    versions = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    (allowed,) = re.findall(r'^requires-python = "(.+)"$', project, re.M)
    assert f"| Python | `{allowed}` | {', '.join(versions)} |" in PAGE
