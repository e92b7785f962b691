"""Source of the running Python's standard library, which needs no download."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from examples.language.documents import SPLITS, Documents, split_of

# Not part of the library, or made by an installation.
_LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "lib-dynload")
_TEST_FOLDERS = ("test", "tests", "idle_test")
_TABLE_LINES = 50


def build_stdlib_documents(*, tests: bool = False, path: str | None = None) -> Documents:
    """The Python files of the standard library.

    Left out are files that this Python does not parse, a second file with the same content, and
    generated tables: see :func:`is_table`. Other versions of Python have other files: run all hosts
    of a job, and runs that are compared, with the same one.

    Args:
        tests: keep folders named test, tests and idle_test, which more than double the text where
            the installation has them.
        path: folder of the library; None is that of the running Python.

    Raises:
        FileNotFoundError: the folder has no Python file.
    """
    root = Path(path or sysconfig.get_path("stdlib"))
    excluded = {*_LEFT_OUT, *(() if tests else _TEST_FOLDERS)}
    files = sorted(_python_files(root, excluded))
    if not files:
        raise FileNotFoundError(f"no Python file in {root}")
    state = {
        "rules": 1,  # another number where the functions below change
        "version": sys.version,
        "files": [[f.relative_to(root).as_posix(), f.stat().st_size] for f in files],
    }
    return Documents(name="stdlib", state=state, read=lambda: _read(root, files))


def is_table(source: str) -> bool:
    """Whether more than half of a file's lines are in long literals, as in a generated table.

    A long literal is a constant, dict, list, tuple or set of at least 50 lines; docstrings don't
    count.

    Raises:
        SyntaxError, ValueError: the source is not Python.
    """
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set)):
            continue
        last = node.end_lineno or node.lineno
        if last - node.lineno + 1 >= _TABLE_LINES and id(node) not in docstrings:
            lines.update(range(node.lineno, last + 1))
    return len(lines) > source.count("\n") / 2


def _python_files(root: Path, excluded: set[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        # In place, so that excluded folders, which can be large, are not walked through.
        folders[:] = [name for name in folders if name not in excluded]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read(root: Path, files: list[Path]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[bytes] = set()
    for file in files:
        content = file.read_bytes()
        digest = hashlib.sha256(content).digest()
        try:
            text = content.decode()
            if not text.strip() or digest in seen or is_table(text):
                continue
        except (SyntaxError, ValueError):  # the tests have files that no parser shall read
            continue
        seen.add(digest)
        splits[split_of(file.relative_to(root).as_posix())].append(text)
    return splits
