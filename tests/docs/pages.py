"""Parser of the documentation's Markdown: fenced blocks with their marks, headings and links.

The line before every block of code has a mark, which readers do not see::

    <!-- run by: tests/docs/test_tutorial.py::test_scripts -->
    <!-- not run: needs a cluster -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conftest import REPOSITORY

# Languages of code. Blocks of other languages are output, diagrams and trees.
CODE = ("bash", "python", "yaml", "sh", "shell", "console", "py")

_FENCE = re.compile(r"^( *)(```+|~~~+)\s*(\S*)(.*)$")
_MARK = re.compile(r"^ *<!-- (run by|not run): (.+) -->$")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
_LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)(?: \"[^\"]*\")?\)")
_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block. `mark` is "run by", "not run" or None, and `reason` is the text after it."""

    page: str
    line: int
    language: str
    title: str
    text: str
    mark: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A page. `name` is its path in the repository."""

    name: str
    lines: tuple[str, ...]

    @classmethod
    def read(cls, name: str) -> Page:
        """Read the page at a path of the repository."""
        return cls(name, tuple((REPOSITORY / name).read_text().splitlines()))

    def blocks(self) -> list[Block]:
        """All fenced blocks in order."""
        result = []
        start = 0
        while start < len(self.lines):
            opening = _FENCE.match(self.lines[start])
            if opening is None:
                start += 1
                continue
            indent, fence, language, rest = opening.groups()
            end = start + 1
            while end < len(self.lines) and self.lines[end].strip() != fence:
                end += 1
            text = "\n".join(line.removeprefix(indent) for line in self.lines[start + 1 : end])
            mark = _MARK.match(self.lines[start - 1]) if start else None
            kind, reason = mark.groups() if mark else (None, "")
            title = re.search(r'title="([^"]+)"', rest)
            name = title.group(1) if title else ""
            result.append(Block(self.name, start + 1, language, name, text, kind, reason))
            start = end + 1
        return result

    def code(self, test: str, language: str = "python") -> list[Block]:
        """The blocks that the named test runs."""
        every = [block for block in self.blocks() if block.language == language]
        return [block for block in every if block.mark == "run by" and block.reason == test]

    def prose(self) -> Iterator[tuple[int, str]]:
        """Lines outside fenced blocks, with their numbers."""
        fence = None
        for number, line in enumerate(self.lines, 1):
            opening = _FENCE.match(line)
            if fence is None and opening is not None:
                fence = opening.group(2)
            elif fence is None:
                yield number, line
            elif line.strip() == fence:
                fence = None

    def links(self) -> Iterator[tuple[int, str]]:
        """Targets of links and pictures, with the numbers of their lines."""
        for number, line in self.prose():
            for _, target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
                yield number, target

    def anchors(self) -> set[str]:
        """Anchors of the page that a link may name, by the rules of GitHub and mkdocs."""
        counts: dict[str, int] = {}
        names = set()
        for _, line in self.prose():
            names.update(_ANCHOR.findall(line))
            heading = _HEADING.match(line)
            if heading is None:
                continue
            slug = slug_of(heading.group(1))
            count = counts.get(slug, 0)
            counts[slug] = count + 1
            names.add(f"{slug}-{count}" if count else slug)
        return names


def slug_of(heading: str) -> str:
    """The anchor of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip())


def pages() -> list[Page]:
    """README.md, CONTRIBUTING.md and all pages of docs/."""
    folder = REPOSITORY / "docs"
    names = sorted(str(path.relative_to(REPOSITORY)) for path in folder.rglob("*.md"))
    return [Page.read(name) for name in ["README.md", "CONTRIBUTING.md", *names]]
