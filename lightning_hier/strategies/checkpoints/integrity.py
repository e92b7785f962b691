"""Tells a checkpoint file that is damaged from one that holds types which are not read.

``torch.save`` writes a zip archive: a directory at its end, and a CRC32 of every record.
``torch.load`` does not compare the latter, so that a changed byte would load silently.
"""

from __future__ import annotations

import errno
import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fsspec.core import url_to_fs
from torch import Tensor

READER_ERRORS = (RuntimeError, UnicodeDecodeError)
"""What torch raises where bytes have changed that no checksum covers."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class DamagedFileError(OSError):
    """A checkpoint file was cut off, or bytes in it have changed since it was written."""


def damage(path: str | Path, *, contents: bool = True) -> str | None:
    """Return the damage of a file, or None.

    Args:
        path: of a file that ``torch.save`` has written, or its URL.
        contents: compare the checksums of all records, which reads the whole file. Otherwise only
            its end is read, which tells whether it was cut off.

    Raises:
        OSError: the file is not there, or can't be read.

    """
    filesystem, place = url_to_fs(str(path))
    with filesystem.open(place, "rb") as file:
        try:
            if not zipfile.is_zipfile(file):
                return "it was cut off"
            with zipfile.ZipFile(file) as archive:
                changed = archive.testzip() if contents else None
        except OSError as error:
            if error.errno != errno.EINVAL:  # a changed byte has made it seek to where nothing is
                raise
            return f"bytes in it have changed ({error})"
        except Exception as error:  # whatever zipfile says of changed bytes in its directory
            return f"bytes in it have changed ({error})"
    return None if changed is None else f"bytes in its record {changed} have changed"


def refused_types(path: str | Path) -> list[str]:
    """Types in an undamaged file that ``weights_only=True`` does not read.

    Not among them are those that the user has given to ``torch.serialization.add_safe_globals``.
    """
    filesystem, place = url_to_fs(str(path))
    with filesystem.open(place, "rb") as file:
        return _unsafe(file)


def damage_beside(paths: Sequence[str], *, contents: bool) -> str | None:
    """Return the damage of files that belong to a checkpoint, or None.

    Args:
        paths: of files that should be there.
        contents: compare their checksums, which reads them.

    """
    problems = {}
    for path in paths:
        try:
            problem = damage(path, contents=contents)
        except FileNotFoundError:
            problem = "it is missing"
        except OSError as error:
            problem = f"it can't be read ({error})"
        if problem is not None:
            problems[path] = problem
    if not problems:
        return None
    path, problem = next(iter(problems.items()))
    others = f", and there are {len(problems) - 1} more such files" if len(problems) > 1 else ""
    return f"the file {path}: {problem}{others}"


def check_file(path: str | Path, *, weights_only: bool) -> None:
    """Check that a file can be read as it was written.

    Not what a web server has: Lightning downloads that itself, and torch refuses types by itself.

    Args:
        path: of the file.
        weights_only: whether types are refused that could run code.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFileError: it was cut off, or bytes in it have changed.
        ValueError: it holds types that are refused; names them.

    """
    if str(path).startswith(("http://", "https://")):
        return
    problem = damage(path)
    refused: list[str] = []
    if problem is None and weights_only:
        try:
            refused = refused_types(path)
        except READER_ERRORS as error:  # torch reads the archive's directory by other rules
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
            "trainer.fit(..., weights_only=False) and newest_checkpoint(..., weights_only=False); "
            "a warning at the save has named the entries that hold them"
        )


def plain_numbers(value: Any) -> Any:
    """The same with Python's numbers in the place of NumPy's, which could not be read back.

    Dictionaries, lists and tuples that hold some are made anew; nothing is changed in place.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        made = [plain_numbers(own) for own in value]
        changed = any(new is not old for new, old in zip(made, value, strict=True))
        return type(value)(made) if changed else value
    if isinstance(value, dict):
        numbers = {key: plain_numbers(own) for key, own in value.items()}
        if any(numbers[key] is not own for key, own in value.items()):
            changed_dict = value.copy()  # of its own kind
            changed_dict.update(numbers)
            return changed_dict
    return value


def refused_entries(value: Any, name: str = "") -> Iterator[str]:
    """Name and type of every entry of a checkpoint that ``weights_only=True`` would not read."""
    # An Enum may also be a str or an int, and is refused all the same.
    if type(value) in _PLAIN or isinstance(value, Tensor):
        return
    if type(value) in (list, tuple):
        for index, own in enumerate(value):
            yield from refused_entries(own, f"{name}[{index}]")
    elif type(value) in (dict, OrderedDict):
        for key, own in value.items():
            yield from refused_entries(key, f"a key of {name}")
            yield from refused_entries(own, f"{name}.{key}" if name else str(key))
    elif _refuses(value):
        yield f"{name}: {type(value).__module__}.{type(value).__qualname__}"


def _refuses(value: Any) -> bool:
    written = io.BytesIO()
    try:
        torch.save(value, written)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False  # the save itself has its own error for it
    written.seek(0)
    return bool(_unsafe(written))


def _unsafe(file: Any) -> list[str]:
    return list(torch.serialization.get_unsafe_globals_in_checkpoint(file))
