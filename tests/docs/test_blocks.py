"""Tests that every block of code in the documentation is run by a test or marked as not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY
from tests.docs.pages import CODE, Block, Page, pages

CI = ".ci/run"
_COMMAND = re.compile(
    r"^ {4,}(?:\$ |make |pip |python3? |torchrun |lightning-hier |export |import )"
)


def faults(page: Page) -> Iterator[str]:
    """Yield a message for each block or line of a page that breaks a rule."""
    for block in page.blocks():
        if not block.language:
            yield f"{block}: a block without a language (use text for blocks without code)"
        if block.language == "mermaid" and ";" in block.text:
            yield f"{block}: a semicolon ends a statement of a diagram, and nothing is drawn"
        if block.language not in CODE:
            continue
        if block.mark is None:
            yield f"{block}: neither `<!-- run by: ... -->` nor `<!-- not run: ... -->` before it"
        elif block.mark == "run by":
            yield from _promise_faults(block)
        if block.language in ("python", "py"):
            yield from _syntax_faults(block)
    for number, line in page.prose():
        if _COMMAND.match(line):
            yield f"{page.name}:{number}: a command in an indented block, which no test sees"


def _promise_faults(block: Block) -> Iterator[str]:
    file, _, name = block.reason.partition("::")
    path = REPOSITORY / file
    if not path.is_file():
        yield f"{block}: there is no {file}"
    elif file == CI:
        called = path.read_text()
        for command in _commands(block.text):
            if not re.search(rf"\b{re.escape(command)}\b", called):
                yield f"{block}: {CI} does not run `{command}`"
    elif not file.startswith("tests/"):
        yield f"{block}: {file} is no test"
    elif name and name not in _functions(path.read_text()):
        yield f"{block}: {file} has no {name}"
    elif file.startswith("tests/docs/") and block.page not in path.read_text():
        yield f"{block}: {file} does not read {block.page}"


def _commands(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["make"]:
            # .ci/run passes several targets to one make.
            yield words[1]
        elif words:
            yield " ".join(words)


def _functions(source: str) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _syntax_faults(block: Block) -> Iterator[str]:
    try:
        ast.parse(block.text)
    except SyntaxError as error:
        yield f"{block}: {error}"


def test_all_code_is_run_or_has_a_reason() -> None:
    messages = [fault for page in pages() for fault in faults(page)]
    assert not messages, "\n" + "\n".join(messages)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nx = 1\n```", "neither"),
        ("<!-- not run:  -->\n```bash\nls\n```", "neither"),
        ("<!-- run by: tests/docs/test_gone.py -->\n```bash\nls\n```", "there is no"),
        ("<!-- run by: tests/docs/test_blocks.py::test_gone -->\n```bash\nls\n```", "has no"),
        ("<!-- run by: README.md -->\n```bash\nls\n```", "is no test"),
        ("<!-- run by: .ci/run -->\n```bash\nmake test\nmake sandwich  # long\n```", "`sandwich`"),
        ("<!-- not run: broken -->\n```python\nx =\n```", "invalid syntax"),
        ("```\nls\n```", "without a language"),
        ("```mermaid\nsequenceDiagram\n    A->>B: one; two\n```", "nothing is drawn"),
        ("text:\n\n    make demo", "indented block"),
    ],
)
def test_checker_finds(text: str, fault: str) -> None:
    messages = list(faults(Page("page.md", tuple(text.splitlines()))))
    assert len(messages) == 1
    assert fault in messages[0]


def test_checker_accepts_a_correct_page() -> None:
    text = "<!-- not run: why -->\n```bash\nls\n```\n\n```text\nls\n```\n\n    W = 2\n"
    assert list(faults(Page("page.md", tuple(text.splitlines())))) == []
