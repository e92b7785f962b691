"""Line images that a JSON-lines manifest lists, such as those of the old books of the reports."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from examples.ocr.alphabet import normalise
from examples.ocr.lines import Line, to_height

MAX_BYTES = 2**30
"""Largest file that is read from a zip file, because a small zip file may unpack to any size."""


def read_old_books(*, path: str, height: int) -> dict[str, list[Line]]:
    """Read the lines of each split.

    Args:
        path: folder of ``manifest.jsonl``, and of the images or a zip file with them. Each row of
            the manifest has the fields ``path``, ``text`` and ``split`` (train, valid or test).
        height: height of all images in pixels.

    Raises:
        FileNotFoundError: if the manifest is missing.
        ValueError: if a line cannot be read. The message names it.
    """
    folder = Path(path)
    read = _reader(folder)
    lines: dict[str, list[Line]] = {"train": [], "valid": [], "test": []}
    manifest = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    for number, row in enumerate(manifest.splitlines(), 1):
        try:
            entry = json.loads(row)
            with Image.open(io.BytesIO(read(entry["path"]))) as image:
                pixels = to_height(image.convert("L"), height)
            text = normalise(entry["text"])
            lines[entry["split"]].append(Line(key=entry["path"], text=text, image=pixels))
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"{folder}/manifest.jsonl, row {number}: {error!r}") from error
    return lines


def _reader(folder: Path) -> Callable[[str], bytes]:
    """Return a function that reads an image of the folder, or of the first zip file in it."""
    archives = sorted(folder.glob("*.zip"))
    if not archives:
        return lambda name: (folder / name).read_bytes()
    archive = zipfile.ZipFile(archives[0])

    def unpack(name: str) -> bytes:
        size = archive.getinfo(name).file_size
        if size > MAX_BYTES:
            raise ValueError(f"{size} bytes, more than the {MAX_BYTES} that a file may have")
        return archive.read(name)

    return unpack
