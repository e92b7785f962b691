"""Line images that a JSON-lines manifest lists, such as those of the old books of the reports."""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image

from examples.file_source import FileSource
from examples.ocr.alphabet import normalise
from examples.ocr.lines import Line, to_height


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
    archives = sorted(folder.glob("*.zip"))
    images = FileSource(archives[0] if archives else folder, "path")
    lines: dict[str, list[Line]] = {"train": [], "valid": [], "test": []}
    manifest = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    for number, row in enumerate(manifest.splitlines(), 1):
        try:
            entry = json.loads(row)
            with Image.open(io.BytesIO(images.read(entry["path"]))) as image:
                pixels = to_height(image.convert("L"), height)
            text = normalise(entry["text"])
            lines[entry["split"]].append(Line(key=entry["path"], text=text, image=pixels))
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"{folder}/manifest.jsonl, row {number}: {error!r}") from error
    return lines
