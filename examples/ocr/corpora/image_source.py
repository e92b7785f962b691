"""Folders and zip files of line images."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class LineFile(NamedTuple):
    """A line that is listed: its key, which is also the image's name in its source, and its text.

    Attributes:
        key: path of the image in the folder or zip.
        text: what stands there.
        split: ``"train"``, ``"valid"`` or ``"test"``.
    """

    key: str
    text: str
    split: str


class ImageSource:
    """A folder or a zip file, read by names.

    Args:
        path: of the folder or zip.

    Raises:
        ValueError: if it is neither.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        if not self.path.is_dir():
            if not zipfile.is_zipfile(self.path):
                raise ValueError(f"images must be in a folder or a zip file, got {str(path)!r}")
            self._zip = zipfile.ZipFile(self.path)

    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""
        if self._zip is not None:
            return self._zip.read(name)
        return (self.path / name).read_bytes()

    def state(self, names: Iterable[str]) -> list[list[Any]]:
        """Names, sizes and times of the files, so that a changed file is not read from a cache."""
        files = [self.path] if self._zip is not None else [self.path / name for name in names]
        return [
            [str(file), file.stat().st_size, file.stat().st_mtime_ns]
            for file in files
            if file.exists()
        ]


def beside(listing: Path, names: Iterable[str]) -> Path:
    """Folder of the listing, or the only zip in it where it holds no file of these names."""
    archives = sorted(listing.parent.glob("*.zip"))
    if len(archives) == 1 and not any((listing.parent / name).exists() for name in names):
        return archives[0]
    return listing.parent
