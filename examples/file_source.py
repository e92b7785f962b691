"""Files in a folder or a zip file, which are read by name."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Largest file that is read, because a small zip file may decompress to any size.
MAX_BYTES = 2**30


class FileSource:
    """Folder or zip file whose files are read by name.

    Args:
        path: path of the folder or zip file.
        name: name of the user's argument, for errors.

    Raises:
        ValueError: the path is neither a folder nor a zip file.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        self.path = Path(path)
        self._zip: zipfile.ZipFile | None = None
        if not self.path.is_dir():
            if not zipfile.is_zipfile(self.path):
                raise ValueError(f"{name} must be a folder or a zip file, got {str(path)!r}")
            self._zip = zipfile.ZipFile(self.path)

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            ValueError: the decompressed file is larger than ``MAX_BYTES``.
            OSError: the folder has no such file.
            KeyError: the zip file has no such file.
        """
        if self._zip is None:
            size = (self.path / name).stat().st_size
        else:
            size = self._zip.getinfo(name).file_size
        if size > MAX_BYTES:
            raise ValueError(f"{size} bytes, more than the {MAX_BYTES} that a file may have")
        return (self.path / name).read_bytes() if self._zip is None else self._zip.read(name)

    def state(self, names: Iterable[str]) -> list[list[Any]]:
        """Return names, sizes and modification times, which identify the files in a cache.

        The state of a zip file is that of the archive.
        """
        files = [self.path] if self._zip is not None else [self.path / name for name in names]
        return [
            [str(file), file.stat().st_size, file.stat().st_mtime_ns]
            for file in files
            if file.exists()
        ]


def default_source(listing: Path, names: Iterable[str]) -> Path:
    """Return the folder of a listing, or the only zip file in it if it has none of the files."""
    archives = sorted(listing.parent.glob("*.zip"))
    if len(archives) == 1 and not any((listing.parent / name).exists() for name in names):
        return archives[0]
    return listing.parent
