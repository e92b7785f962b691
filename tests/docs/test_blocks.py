"""Tests that every block of code in the documentation is run by a test or marked as not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

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
