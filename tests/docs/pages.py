"""Markdown as tests read it: fenced blocks with their marks, headings and links.

Every block of code carries a mark, which readers do not see, in the line before it::

    <!-- run by: tests/docs/test_tutorial.py::test_scripts -->
    <!-- not run: needs a cluster -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conftest import REPOSITORY

# Languages that somebody may want to run; the others are output, pictures and trees.
CODE = ("bash", "python", "yaml", "sh", "shell", "console", "py")

_FENCE = re.compile(r"^( *)(```+|~~~+)\s*(\S*)(.*)$")
_MARK = re.compile(r"^ *<!-- (run by|not run): (.+) -->$")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
_LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)(?: \"[^\"]*\")?\)")
_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block: `mark` is "run by", "not run" or None, `reason` what follows it."""

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
    """A page by its path in the repository."""

    name: str
    lines: tuple[str, ...]

    @classmethod
    def read(cls, name: str) -> Page:
        """The page of that path."""
        return cls(name, tuple((REPOSITORY / name).read_text().splitlines()))

    def blocks(self) -> list[Block]:
        """All fenced blocks, in their order."""
        found = []
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
            found.append(Block(self.name, start + 1, language, name, text, kind, reason))
            start = end + 1
        return found

    def code(self, test: str, language: str = "python") -> list[Block]:
        """The blocks that the named test runs."""
        every = [block for block in self.blocks() if block.language == language]
        return [block for block in every if block.mark == "run by" and block.reason == test]

    def prose(self) -> Iterator[tuple[int, str]]:
        """Lines outside fenced blocks, with their numbers."""
        fence = None
        for number, line in enumerate(self.lines, 1):
            found = _FENCE.match(line)
            if fence is None and found is not None:
                fence = found.group(2)
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
        """What a link to a place in the page may name, by GitHub's and mkdocs' rule."""
        found: dict[str, int] = {}
        names = set()
        for _, line in self.prose():
            names.update(_ANCHOR.findall(line))
            heading = _HEADING.match(line)
            if heading is None:
                continue
            slug = slug_of(heading.group(1))
            count = found.get(slug, 0)
            found[slug] = count + 1
            names.add(f"{slug}-{count}" if count else slug)
        return names


def slug_of(heading: str) -> str:
    """The anchor of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip())


def pages() -> list[Page]:
    """Everything that a reader of the project reads first, and all of docs/."""
    folder = REPOSITORY / "docs"
    found = sorted(str(path.relative_to(REPOSITORY)) for path in folder.rglob("*.md"))
    return [Page.read(name) for name in ["README.md", "CONTRIBUTING.md", *found]]
