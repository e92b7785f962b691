"""Line images listed in a JSON-lines manifest."""

from __future__ import annotations

import json
from pathlib import Path

from examples.file_source import FileSource, default_source
from examples.ocr.corpora.files import Selection, read_corpus
from examples.ocr.corpora.line_file import LineFile
from examples.ocr.corpus import SPLITS, Corpus
from examples.ocr.unreadable import OnUnreadable, Problem


def build_manifest_corpus(
    *,
    path: str | Path,
    images: str | Path | None = None,
    height: int = 60,
    scale: float = 1.0,
    max_width: int | None = None,
    max_lines: int | None = None,
    max_eval_lines: int | None = None,
    on_unreadable: OnUnreadable = "error",
    cache_dir: str | Path | None = None,
) -> Corpus:
    """Read the line images that a manifest lists.

    Args:
        path: the manifest, or a directory with a ``manifest.jsonl``. Each row is a JSON object with
            the fields ``path``, ``text`` and ``split`` (train, valid or test).
        images: directory or zip file that contains the images. The field ``path`` is relative to
            it. None: the directory of the manifest or, if it does not contain the images, the only
            zip file in it.
        height, scale, max_width, max_lines, max_eval_lines: see ``Selection``.
        on_unreadable: treatment of lines that cannot be read. ``"error"``: raise an error.
            ``"skip"``: log a warning. Both messages name the lines.
        cache_dir: directory of the cache. None: no cache.

    Raises:
        FileNotFoundError: if there is no manifest.
        ValueError: if lines cannot be read and ``on_unreadable`` is ``"error"``. The message lists
            the lines.
    """
    selection = Selection(
        height=height,
        scale=scale,
        max_width=max_width,
        max_lines=max_lines,
        max_eval_lines=max_eval_lines,
    )
    manifest = Path(path) / "manifest.jsonl" if Path(path).is_dir() else Path(path)
    files, problems = read_manifest(manifest)
    source = FileSource(images or default_source(manifest, (file.key for file in files)), "images")
    return read_corpus(
        manifest.resolve().parent.name,
        files,
        source,
        selection=selection,
        problems=problems,
        on_unreadable=on_unreadable,
        cache_dir=cache_dir,
    )


def read_manifest(path: Path) -> tuple[list[LineFile], list[Problem]]:
    """Return the listed lines, and the rows that cannot be read, with the reasons.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is empty.
    """
    files: list[LineFile] = []
    problems: list[Problem] = []
    for number, row in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if row.strip():
            try:
                files.append(_line_file(json.loads(row)))
            except ValueError as error:  # includes JSONDecodeError
                problems.append((f"{path.name}, row {number}", str(error)))
    if not files and not problems:
        raise ValueError(f"{path} lists no line")
    return files, problems


def _line_file(entry: object) -> LineFile:
    names = ("path", "text", "split")
    if not isinstance(entry, dict):
        raise ValueError("it is not a JSON object")
    missing = [name for name in names if not isinstance(entry.get(name), str)]
    if missing:
        raise ValueError(f"no string in {', '.join(missing)}")
    if entry["split"] not in SPLITS:
        raise ValueError(f"split {entry['split']!r} is none of {', '.join(SPLITS)}")
    return LineFile(*(entry[name] for name in names))
