"""Distinguishes damaged checkpoint files from files with types that are not loaded.

``torch.save`` writes a zip archive, with a directory at its end and a CRC32 of every record.
``torch.load`` does not verify the CRC32, so a changed byte would be loaded silently.
"""

from __future__ import annotations

import errno
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

READER_ERRORS = (RuntimeError, UnicodeDecodeError)
"""Errors of torch for changed bytes that no checksum covers."""


class DamagedFileError(OSError):
    """A checkpoint file was truncated or changed after it was written."""


def filesystem_of(path: str | Path) -> tuple[Any, str]:
    """File system of a path or URL, and the path in it.

    File systems keep listings and sizes, which the other ranks and jobs outdate. They are dropped.
    """
    filesystem, place = url_to_fs(str(path))
    filesystem.invalidate_cache()
    return filesystem, place


def damage(path: str | Path, *, contents: bool = True) -> str | None:
    """Describe the damage of a file, or return None.

    Args:
        path: path of a file that ``torch.save`` has written, or its URL.
        contents: whether to verify the checksums of all records, which reads the whole file.
            Otherwise only the end of the file is read, which shows whether it was truncated.

    Raises:
        OSError: the file does not exist or cannot be read.

    """
    filesystem, place = filesystem_of(path)
    with filesystem.open(place, "rb") as file:
        try:
            if not zipfile.is_zipfile(file):
                return "it was truncated"
            with zipfile.ZipFile(file) as archive:
                changed = archive.testzip() if contents else None
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: changed bytes cause an invalid seek
                raise
            return f"bytes in it have changed ({error})"
        except Exception as error:  # zipfile raises errors of many types
            return f"bytes in it have changed ({error})"
    return None if changed is None else f"bytes in its record {changed} have changed"


def refused_types(path: str | Path) -> list[str]:
    """Types in an undamaged file that ``weights_only=True`` does not load.

    Types that the user has passed to ``torch.serialization.add_safe_globals`` are not included.
    """
    filesystem, place = filesystem_of(path)
    with filesystem.open(place, "rb") as file:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(file))


def truncated_beside(paths: Sequence[str]) -> str | None:
    """Name a file that belongs to a checkpoint and is missing or truncated, or return None."""
    problems = {}
    for path in paths:
        try:
            problem = damage(path, contents=False)
        except FileNotFoundError:
            problem = "it is missing"
        except OSError as error:
            problem = f"it can't be read ({error})"
        if problem is not None:
            problems[path] = problem
    return _first_of(problems)


def missing_beside(paths: Sequence[str]) -> str | None:
    """Name a file that belongs to a checkpoint and does not exist, or return None."""
    filesystem, _ = filesystem_of(paths[0])
    return _first_of({path: "it is missing" for path in paths if not filesystem.exists(path)})


def _first_of(problems: Mapping[str, str]) -> str | None:
    if not problems:
        return None
    path, problem = next(iter(problems.items()))
    others = f", and there are {len(problems) - 1} more such files" if len(problems) > 1 else ""
    return f"the file {path}: {problem}{others}"


def check_file(path: str | Path, *, weights_only: bool) -> None:
    """Check that a file is undamaged and can be loaded.

    Files on web servers are not checked: Lightning downloads them, and torch checks types.

    Args:
        path: path of the file.
        weights_only: whether types that could run code are refused.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFileError: it was truncated or changed.
        ValueError: it contains refused types. The error names them.

    """
    if str(path).startswith(("http://", "https://")):
        return
    # Damage first: changed bytes may look like types that were never saved.
    problem = damage(path)
    refused: list[str] = []
    if problem is None and weights_only:
        try:
            refused = refused_types(path)
        except READER_ERRORS as error:  # torch reads the directory in another way
            problem = str(error)
    if problem is not None:
        raise DamagedFileError(
            f"the checkpoint file {path} is damaged: {problem}. Remove the checkpoint and resume "
            "from an older one, or from a copy of it"
        )
    if refused:
        raise ValueError(
            f"the checkpoint file {path} is whole, but holds {', '.join(refused)}, which "
            "weights_only=True does not read. Allow them by "
            "torch.serialization.add_safe_globals([...]) before, or, if you trust the file, by "
            "trainer.fit(..., weights_only=False) and newest_checkpoint(..., weights_only=False). "
            "Save numbers, text, tensors, lists and dictionaries instead (str(path), "
            "array.tolist())"
        )


def read_mapped(path: str | Path, weights_only: bool) -> Any:
    """Read a file whose tensors are hardly needed. Without a check of what is in it."""
    filesystem, place = filesystem_of(path)
    if isinstance(filesystem, LocalFileSystem):
        # Memory-mapped, so that tensors are not read before they are used.
        return torch.load(place, map_location="cpu", weights_only=weights_only, mmap=True)
    with filesystem.open(place, "rb") as file:
        return torch.load(file, map_location="cpu", weights_only=weights_only)
