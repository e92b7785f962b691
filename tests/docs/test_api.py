"""docs/api/ shows every public name, and mkdocs.yml every page."""

from __future__ import annotations

import re

import lightning_hier
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"


def _shown() -> list[str]:
    pages = sorted((DOCS / "api").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]


def test_every_public_name_is_on_one_page() -> None:
    names = [name.removeprefix("lightning_hier.") for name in _shown()]
    assert sorted(name for name in names if "." not in name) == sorted(lightning_hier.__all__)


def test_index_lists_every_page_and_every_module() -> None:
    index = (DOCS / "api" / "index.md").read_text()
    pages = {path.name for path in (DOCS / "api").glob("*.md")}
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == pages - {"index.md"}
    modules = {name.rpartition(".")[0] for name in _shown()}
    assert not [module for module in modules if f"`{module}`" not in index]


def test_every_public_name_says_what_it_is() -> None:
    for name in lightning_hier.__all__:
        if name != "__version__":
            assert (getattr(lightning_hier, name).__doc__ or "").strip(), name


def test_every_page_is_in_the_navigation_and_every_entry_a_page() -> None:
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.M)
    made = {"index.md", "contributing.md", "changes.md"}
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert set(listed) == pages | made
    assert len(listed) == len(set(listed))
