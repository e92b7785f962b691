"""Tests that links between pages lead to existing files and headings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.docs.pages import Page, pages

# Pages of the site beside docs/, as docs/_build/root_pages.py adds them.
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def faults(page: Page, root: Path) -> Iterator[str]:
    """Yield a message for each broken link of a page. Addresses on the web are not checked."""
    for number, target in page.links():
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        path = (root / page.name).parent / name if name else root / page.name
        if not path.exists():
            yield f"{page.name}:{number}: {target} is not there"
        elif anchor and path.suffix == ".md":
            relative = str(path.resolve().relative_to(root.resolve()))
            if anchor not in Page(relative, tuple(path.read_text().splitlines())).anchors():
                yield f"{page.name}:{number}: {name or page.name} has no heading #{anchor}"


def off_the_site(page: Page, root: Path) -> Iterator[str]:
    """Yield a message for each link to a file of the repository that is not on the site."""
    for number, target in page.links():
        path = (root / page.name).parent / target.partition("#")[0]
        if path.exists() and not _on_the_site(path.resolve().relative_to(root.resolve())):
            yield f"{page.name}:{number}: {target} is not on the site: name it without a link"


def _on_the_site(path: Path) -> bool:
    return path.parts[0] == "docs" or str(path) in ROOT_PAGES


def test_links_lead_to_existing_files_and_headings() -> None:
    more = [Page.read(name) for name in ("CHANGELOG.md", "tests/README.md")]
    messages = [fault for page in [*pages(), *more] for fault in faults(page, REPOSITORY)]
    assert not messages, "\n" + "\n".join(messages)


def test_links_of_the_site_stay_on_it() -> None:
    of_the_site = [*pages(), Page.read("CHANGELOG.md")]
    messages = [fault for page in of_the_site for fault in off_the_site(page, REPOSITORY)]
    assert not messages, "\n" + "\n".join(messages)
