"""Tests that pages of reference are complete: public names, pages, versions."""

from __future__ import annotations

import re

import pytest

import lightning_hier
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"


def _documented_names() -> list[str]:
    pages = sorted((DOCS / "api").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]


def test_every_public_name_is_on_one_page() -> None:
    names = [name.removeprefix("lightning_hier.") for name in _documented_names()]
    assert sorted(name for name in names if "." not in name) == sorted(lightning_hier.__all__)


def test_index_lists_every_page_and_every_module() -> None:
    index = (DOCS / "api" / "index.md").read_text()
    pages = {path.name for path in (DOCS / "api").glob("*.md")}
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == pages - {"index.md"}
    modules = {name.rpartition(".")[0] for name in _documented_names()}
    assert not [module for module in modules if f"`{module}`" not in index]


def test_every_public_name_has_a_docstring() -> None:
    for name in lightning_hier.__all__:
        if name != "__version__":
            assert (getattr(lightning_hier, name).__doc__ or "").strip(), name


def test_every_page_is_in_the_navigation_and_every_entry_a_page() -> None:
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.M)
    generated = {"index.md", "contributing.md", "changes.md"}
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert set(listed) == pages | generated
    assert len(listed) == len(set(listed))


PAGE = (REPOSITORY / "docs" / "compatibility.md").read_text()


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
