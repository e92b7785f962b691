"""Source code of the running Python's standard library, which needs no download."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from examples.language.documents import SPLITS, Documents, split_of

# Folders that are not source code of the library.
_EXCLUDED_FOLDERS = ("site-packages", "dist-packages", "__pycache__", "lib-dynload")
_TEST_FOLDERS = ("test", "tests", "idle_test")
_TABLE_LINES = 50


def build_stdlib_documents(*, tests: bool = False, path: str | None = None) -> Documents:
    """Return the Python files of the standard library as documents.

    Files that this Python does not parse, duplicates, and generated tables (see :func:`is_table`)
    are excluded. The files depend on the version of Python, so all hosts of a job and all runs of a
    comparison need the same version.

    Args:
        tests: whether to include folders named test, tests and idle_test. They more than double the
            text, if they are installed.
        path: folder of the library. None: that of the running Python.

    Raises:
        FileNotFoundError: the folder has no Python file.

    """
    root = Path(path or sysconfig.get_path("stdlib"))
    excluded = {*_EXCLUDED_FOLDERS, *(() if tests else _TEST_FOLDERS)}
    files = sorted(_python_files(root, excluded))
    if not files:
        raise FileNotFoundError(f"no Python file in {root}")
    state = {
        "rules": 1,  # version of the functions below, to be incremented when they change
        "version": sys.version,
        "files": [[f.relative_to(root).as_posix(), f.stat().st_size] for f in files],
    }
    return Documents(name="stdlib", state=state, read=lambda: _read(root, files))


def is_table(source: str) -> bool:
    """Return whether more than half of the lines of a file are in long literals.

    A long literal is a constant, dict, list, tuple or set of at least 50 lines, except a docstring.

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
        # In place, so that os.walk does not enter excluded folders, which may be large.
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
        except (SyntaxError, ValueError):  # the tests include files that are invalid on purpose
            continue
        seen.add(digest)
        splits[split_of(file.relative_to(root).as_posix())].append(text)
    return splits
