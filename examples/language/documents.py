"""Documents of text in three splits: Python's standard library, or folders of text files."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPLITS = ("train", "valid", "test")

# Folders that are not source code of the library.
_EXCLUDED_FOLDERS = ("site-packages", "dist-packages", "__pycache__", "lib-dynload")
_TEST_FOLDERS = ("test", "tests", "idle_test")
_TABLE_LINES = 50


@dataclass(frozen=True, kw_only=True)
class Documents:
    """The documents of a corpus. They are read on demand.

    Attributes:
        name: name of the corpus.
        state: versions of the source files, as JSON. It is the key of the cache, so that changed
            files are tokenised again. No text is read to compute it.
        read: function that reads the texts of each split, in a fixed order. Splits may be empty.

    """

    name: str
    state: Mapping[str, Any] = field(repr=False)
    read: Callable[[], dict[str, list[str]]] = field(repr=False)


def split_of(name: str) -> str:
    """Return the split of a file: 90% of the files are in train, 5% each in valid and test.

    The split depends only on a hash of ``name``, so it does not change when files are added.
    """
    part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 20
    return {0: "valid", 1: "test"}.get(part, "train")


def folder_documents(
    *, path: str | None = None, test_path: str | None = None, pattern: str = "**/*.txt"
) -> Documents:
    """Return the text files of a folder as documents. Files must be in UTF-8.

    Args:
        path: folder whose files are divided by a hash of their names: 90% train, 5% valid, 5% test.
        test_path: folder whose files are all in the test split, instead of ``path``.
        pattern: pattern of the files in a folder, as in ``pathlib.Path.glob``.

    Raises:
        FileNotFoundError: the folder does not exist or has no matching file.
        ValueError: both or neither of the folders are given.
        UnicodeDecodeError: a file is not UTF-8, when it is read.

    """
    if (path is None) == (test_path is None):
        raise ValueError(
            f"the folder corpus takes either path or test_path, got {path!r} and {test_path!r}"
        )
    root = Path(path or test_path or "")
    found = sorted(file for file in root.glob(pattern) if file.is_file())
    if not found:
        raise FileNotFoundError(f"no file {pattern} in {str(root)!r}; see path and pattern")
    files: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for file in found:
        split = "test" if path is None else split_of(file.relative_to(root).as_posix())
        files[split].append(file)
    state = {
        split: [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in of_split]
        for split, of_split in files.items()
    }

    def read() -> dict[str, list[str]]:
        # read_text would change line ends
        return {split: [f.read_bytes().decode() for f in files[split]] for split in SPLITS}

    return Documents(name="folder", state=state, read=read)


def stdlib_documents(*, path: str | None = None) -> Documents:
    """Return the Python files of the standard library as documents.

    Folders of tests, files that this Python does not parse, duplicates, and generated tables (see
    :func:`is_table`) are excluded. The files depend on the version of Python, so all hosts of a job
    and all runs of a comparison need the same version.

    Args:
        path: folder of the library. None: that of the running Python.

    Raises:
        FileNotFoundError: the folder has no Python file.

    """
    root = Path(path or sysconfig.get_path("stdlib"))
    files = sorted(_python_files(root, {*_EXCLUDED_FOLDERS, *_TEST_FOLDERS}))
    if not files:
        raise FileNotFoundError(f"no Python file in {root}")
    state = {
        "rules": 1,  # version of the functions below, to be incremented when they change
        "version": sys.version,
        "files": [[f.relative_to(root).as_posix(), f.stat().st_size] for f in files],
    }
    return Documents(name="stdlib", state=state, read=lambda: _read_python(root, files))


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


def _read_python(root: Path, files: list[Path]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[bytes] = set()
    for file in files:
        content = file.read_bytes()
        digest = hashlib.sha256(content).digest()
        try:
            text = content.decode()
            if not text.strip() or digest in seen or is_table(text):
                continue
        except (SyntaxError, ValueError):  # the library includes files that are invalid on purpose
            continue
        seen.add(digest)
        splits[split_of(file.relative_to(root).as_posix())].append(text)
    return splits
