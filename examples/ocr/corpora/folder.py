"""Directories of images ``name.png`` with their texts in ``name.gt.txt``."""

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
    """Read all images below a directory, with texts from files next to them.

    The names of an image and its text are equal up to the first dot: the text of ``0001.bin.png``
    is ``0001.gt.txt``. Subdirectories ``train``, ``valid`` and ``test`` are the splits. If there
    are none, a hash of the name assigns each line to a split: 80% to train, 10% to valid and 10% to
    test.

    Args:
        path: the directory.
        split: split of all lines, such as ``"test"``. None: several splits, as described above.
        height, scale, max_width, max_lines, max_eval_lines: see ``Selection``.
        on_unreadable: treatment of images without texts, texts without images, and unreadable
            files. ``"error"``: raise an error. ``"skip"``: log a warning. Both messages name the
            files.
        cache_dir: directory of the cache. None: no cache.

    Raises:
        FileNotFoundError: if there is no such directory.
        ValueError: if the split is unknown, or lines cannot be read and ``on_unreadable`` is
            ``"error"``. The message lists the lines.
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
    """Return images with their texts, sorted by name, and the problems.

    Problems are images without texts, texts without images, and texts that cannot be read.
    """
    folders = [root / split for split in SPLITS if (root / split).is_dir()]
    split_by_folder = bool(folders) and only_split is None
    all_files = [
        file
        for folder in (folders if split_by_folder else [root])
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    texts = {_stem(file): file for file in all_files if file.name.endswith(TEXT_SUFFIX)}
    files: list[LineFile] = []
    problems: list[Problem] = []
    image_stems: set[Path] = set()
    for file in all_files:
        if file.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        key = file.relative_to(root).as_posix()
        stem = _stem(file)
        image_stems.add(stem)
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
    problems += [
        (text.relative_to(root).as_posix(), "no image beside it")
        for stem, text in texts.items()
        if stem not in image_stems
    ]
    return files, problems


def _stem(file: Path) -> Path:
    return file.with_name(file.name.split(".")[0])


def _split(key: str) -> str:
    """Return the split of a line, which depends only on its name."""
    remainder = hashlib.sha256(key.encode()).digest()[0] % 10
    return {0: "valid", 1: "test"}.get(remainder, "train")
