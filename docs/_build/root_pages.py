"""A hook of MkDocs that adds README.md, CONTRIBUTING.md and CHANGELOG.md to the site.

The files are not copied; their links, which are relative to the repository, are rewritten. Mermaid
is loaded from docs/assets/ if it is there. Otherwise the reader's browser loads it from a CDN.
The search lists guides and the API before reports.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
MERMAID = "assets/mermaid.min.js"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Load Mermaid from the site."""
    if (Path(config.docs_dir) / MERMAID).is_file():
        config.extra_javascript.append(MERMAID)
    return config


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages outside docs/."""
    for source, target in PAGES.items():
        text = for_the_site((ROOT / source).read_text())
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(_: str, *, page: Page, **__: Any) -> None:
    """Let the search prefer pages that explain something to those that report what was measured."""
    if page.file.src_uri.startswith(("reports/", "decisions/", "changes.md")):
        page.meta["search"] = {"boost": 0.2}


def for_the_site(text: str) -> str:
    """Rewrite links relative to the repository as links relative to the site."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, target in PAGES.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text
