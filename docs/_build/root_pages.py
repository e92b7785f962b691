"""A hook of mkdocs: the README and its like, which lie beside docs/, are pages too.

They are not copied, so that there is one text; their links are those of the repository and become
those of the site. And the library that draws the diagrams is taken from docs/assets/ if it is there,
otherwise readers' browsers fetch it from a CDN.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
MERMAID = "assets/mermaid.min.js"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the diagrams' library from the site itself."""
    if (Path(config.docs_dir) / MERMAID).is_file():
        config.extra_javascript.append(MERMAID)
    return config


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that lie beside docs/."""
    for source, target in PAGES.items():
        text = for_the_site((ROOT / source).read_text())
        files.append(File.generated(config, target, content=text))
    return files


def for_the_site(text: str) -> str:
    """Links from the repository's root, as links from the site's."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, target in PAGES.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text
