"""Folders in which ``name.png`` has its text beside it in ``name.gt.txt``."""

from __future__ import annotations

import hashlib
from pathlib import Path

from examples.file_source import FileSource
from examples.ocr.corpora.files import Selection, read_corpus
from examples.ocr.corpora.line_file import LineFile
from examples.ocr.corpus import SPLITS, Corpus
from examples.ocr.unreadable import OnUnreadable, Problem

IMAGE_SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp")
TEXT_SUFFIX = ".gt.txt"


def build_folder_corpus(
    *,
    path: str | Path,
    split: str | None = None,
    height: int = 60,
    scale: float = 1.0,
    max_width: int | None = None,
    max_lines: int | None = None,
    max_eval_lines: int | None = None,
    on_unreadable: OnUnreadable = "error",
    cache_dir: str | Path | None = None,
) -> Corpus:
    """Read all images below a folder that have their text beside them.

    The first part of an image's name ends at the first dot: ``0001.bin.png`` belongs to
    ``0001.gt.txt``. Where the folder has subfolders ``train``, ``valid`` or ``test``, these are the
    splits; else eight lines of ten are in train and one each in valid and test, as a hash of the
    name has it.

    Args:
        path: the folder.
        split: of all lines, such as ``"test"``; the folder is then not divided.
        height, scale, max_width, max_lines, max_eval_lines: see ``Selection``.
        on_unreadable: ``"error"`` raises where an image has no text, a text no image, or one of
            them cannot be read; ``"skip"`` warns; both name them.
        cache_dir: folder where the read images are kept; None keeps none.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the split is unknown, or lines cannot be read and shall not be skipped; one
            error that lists them.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    if split not in (None, *SPLITS):
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    files, problems = find_pairs(root, split)
    return read_corpus(
        root.resolve().name,
        files,
        FileSource(root, "path"),
        selection=Selection(
            height=height,
            scale=scale,
            max_width=max_width,
            max_lines=max_lines,
            max_eval_lines=max_eval_lines,
        ),
        problems=problems,
        on_unreadable=on_unreadable,
        cache_dir=cache_dir,
    )


def find_pairs(root: Path, only_split: str | None = None) -> tuple[list[LineFile], list[Problem]]:
    """Return images with their texts, in the order of their names, and what has no partner."""
    folders = [root / split for split in SPLITS if (root / split).is_dir()]
    split_by_folder = bool(folders) and only_split is None
    found = [
        file
        for folder in (folders if split_by_folder else [root])
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    texts = {_stem(file): file for file in found if file.name.endswith(TEXT_SUFFIX)}
    files: list[LineFile] = []
    problems: list[Problem] = []
    used: set[Path] = set()
    for file in found:
        if file.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        key = file.relative_to(root).as_posix()
        stem = _stem(file)
        used.add(stem)
        if stem not in texts:
            problems.append((key, f"no {stem.name}{TEXT_SUFFIX} beside it"))
            continue
        try:
            text = texts[stem].read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            problems.append((key, f"its text cannot be read: {error}"))
            continue
        split = key.split("/")[0] if split_by_folder else only_split or _split(key)
        files.append(LineFile(key, text, split))
    lonely = [texts[stem].relative_to(root).as_posix() for stem in texts if stem not in used]
    problems += [(key, "no image beside it") for key in lonely]
    return files, problems


def _stem(file: Path) -> Path:
    return file.with_name(file.name.split(".")[0])


def _split(key: str) -> str:
    """Split by a hash of the name, so that more lines do not move the others."""
    tenth = hashlib.sha256(key.encode()).digest()[0] % 10
    return {0: "valid", 1: "test"}.get(tenth, "train")
