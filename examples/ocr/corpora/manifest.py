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
        path: the manifest, or a folder with a ``manifest.jsonl``: one JSON object per line with the
            fields ``path``, ``text`` and ``split`` (train, valid or test).
        images: folder or zip to which ``path`` is relative; None is the manifest's own folder, or
            the only zip in it where it holds no such files.
        height, scale, max_width, max_lines, max_eval_lines: see ``Selection``.
        on_unreadable: ``"error"`` raises where lines cannot be read, ``"skip"`` warns; both name
            them.
        cache_dir: folder where the read images are kept; None keeps none.

    Raises:
        FileNotFoundError: if there is no manifest.
        ValueError: if lines cannot be read and shall not be skipped; one error that lists them.
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
    """Read the listed lines, and which rows of the manifest are none, with the reason.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it lists nothing.
    """
    files: list[LineFile] = []
    problems: list[Problem] = []
    for number, row in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if row.strip():
            try:
                files.append(_line_file(json.loads(row)))
            except ValueError as error:  # JSONDecodeError is one
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
