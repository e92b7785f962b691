"""Folders and zip files whose files a listing names."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# A zip of a few kilobytes may say that it holds as much as it likes.
MOST_BYTES = 2**30


class FileSource:
    """A folder or a zip file, read by names.

    Args:
        path: of the folder or zip.
        name: of the argument by which the user gives it, for errors.

    Raises:
        ValueError: if it is neither.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        if not self.path.is_dir():
            if not zipfile.is_zipfile(self.path):
                raise ValueError(f"{name} must be a folder or a zip file, got {str(path)!r}")
            self._zip = zipfile.ZipFile(self.path)

    def read(self, name: str) -> bytes:
        """Return the bytes of one file.

        Raises:
            ValueError: if it is larger than ``MOST_BYTES`` once unpacked.
            OSError, KeyError: if it is not there.
        """
        if self._zip is None:
            size = (self.path / name).stat().st_size
        else:
            size = self._zip.getinfo(name).file_size
        if size > MOST_BYTES:
            raise ValueError(f"{size} bytes, more than the {MOST_BYTES} that are read of one file")
        return (self.path / name).read_bytes() if self._zip is None else self._zip.read(name)

    def state(self, names: Iterable[str]) -> list[list[Any]]:
        """Names, sizes and times of the files, so that a changed file is not read from a cache."""
        files = [self.path] if self._zip is not None else [self.path / name for name in names]
        return [
            [str(file), file.stat().st_size, file.stat().st_mtime_ns]
            for file in files
            if file.exists()
        ]


def default_source(listing: Path, names: Iterable[str]) -> Path:
    """Folder of the listing, or the only zip in it where it holds no file of these names."""
    archives = sorted(listing.parent.glob("*.zip"))
    if len(archives) == 1 and not any((listing.parent / name).exists() for name in names):
        return archives[0]
    return listing.parent
