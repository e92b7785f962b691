"""Lines of the IAM Handwriting Database, in the layout of its distribution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from examples.file_source import FileSource
from examples.ocr.corpora.files import Selection, read_corpus
from examples.ocr.corpora.line_file import LineFile
from examples.ocr.corpus import Corpus
from examples.ocr.unreadable import OnUnreadable, Problem

# File names of the lists of a split, which differ between distributions. The first complete tuple
# of files is read.
PARTITION_FILES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "train": (("trainset.txt",), ("train.txt",), ("train.uttlist",)),
    "valid": (
        ("validationset1.txt", "validationset2.txt"),
        ("validationset1.txt",),
        ("valid.txt",),
        ("validation.txt",),
        ("validation.uttlist",),
    ),
    "test": (("testset.txt",), ("test.txt",), ("test.uttlist",)),
}
_PARTITION_FOLDERS = (".", "task", "splits", "largeWriterIndependentTextLineRecognitionTask")
# Columns of lines.txt: name, ok or err, grey level, components, x, y, width, height, words.
_COLUMNS = 9


def build_iam_corpus(
    *,
    path: str | Path,
    partitions: str | Path | None = None,
    join_punctuation: bool = False,
    height: int = 60,
    scale: float = 1.0,
    max_width: int | None = None,
    max_lines: int | None = None,
    max_eval_lines: int | None = None,
    on_unreadable: OnUnreadable = "error",
    cache_dir: str | Path | None = None,
) -> Corpus:
    """Read images such as ``lines/a01/a01-000u/a01-000u-00.png``, and ``ascii/lines.txt``.

    Lines that are in no list of a split are not used. A split without lists is empty.

    Args:
        path: directory with ``ascii/lines.txt`` (or ``lines.txt``) and ``lines``.
        partitions: directory with the lists of the splits, such as ``trainset.txt``,
            ``validationset1.txt``, ``validationset2.txt`` and ``testset.txt``. They contain names
            of lines (``a01-000u-00``) or of forms (``a01-000u``). None: search ``path`` and its
            subdirectories ``task``, ``splits`` and
            ``largeWriterIndependentTextLineRecognitionTask``.
        join_punctuation: remove the spaces before punctuation marks: "Peers ." becomes "Peers.".
        height, scale, max_width, max_lines, max_eval_lines: see ``Selection``.
        on_unreadable: treatment of rows and images that cannot be read, and of names in the lists
            that ``lines.txt`` does not contain. ``"error"``: raise an error. ``"skip"``: log a
            warning. Both messages name the lines.
        cache_dir: directory of the cache. None: no cache.

    Raises:
        FileNotFoundError: if ``lines.txt`` or the lists of all splits are missing.
        ValueError: if lines cannot be read and ``on_unreadable`` is ``"error"``. The message lists
            the lines.
    """
    root = Path(path)
    texts, problems = read_lines_txt(_first(root, ("ascii/lines.txt", "lines.txt")))
    files: list[LineFile] = []
    for split, names in read_partitions(root, partitions).items():
        split_files, split_problems = _select_lines(texts, names, split)
        files += split_files
        problems += split_problems
    if join_punctuation:
        files = [file._replace(text=_join_punctuation(file.text)) for file in files]
    return read_corpus(
        "iam",
        files,
        FileSource(root / "lines", "path"),
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


def read_lines_txt(path: Path) -> tuple[dict[str, str], list[Problem]]:
    """Return the texts of the lines by name, and the rows that cannot be read."""
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    for number, row in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not row.strip() or row.startswith("#"):
            continue
        columns = row.split(" ", _COLUMNS - 1)
        if len(columns) < _COLUMNS or columns[1] not in ("ok", "err"):
            problems.append((f"{path.name}, row {number}", f"no line of IAM: {row[:60]!r}"))
            continue
        texts[columns[0]] = columns[-1].replace("|", " ")
    return texts, problems


def read_partitions(root: Path, partitions: str | Path | None = None) -> dict[str, list[str]]:
    """Return the names in the lists of each split that has lists.

    Raises:
        FileNotFoundError: if no split has lists. The message contains the searched directories.
    """
    folders = [Path(partitions)] if partitions else [root / name for name in _PARTITION_FOLDERS]
    names: dict[str, list[str]] = {}
    for split, choices in PARTITION_FILES.items():
        sets = [[folder / name for name in choice] for folder in folders for choice in choices]
        lists = next((files for files in sets if all(file.is_file() for file in files)), None)
        if lists is None:
            continue
        words = " ".join(file.read_text(encoding="utf-8") for file in lists).split()
        names[split] = [word.removesuffix(".png") for word in words]
    if not names:
        expected = "; ".join(f"{split}: {lists_of(split)}" for split in PARTITION_FILES)
        raise FileNotFoundError(
            f"no list of a split in {' or '.join(map(str, folders))} ({expected})"
        )
    return names


def lists_of(split: str) -> str:
    """Return the possible file names of the lists of a split, for messages."""
    return ", or ".join(" and ".join(choice) for choice in PARTITION_FILES[split])


def _select_lines(
    texts: Mapping[str, str], names: list[str], split: str
) -> tuple[list[LineFile], list[Problem]]:
    lines_of_form: dict[str, list[str]] = {}
    for line in texts:
        lines_of_form.setdefault(_form(line), []).append(line)
    selected: dict[str, None] = {}  # an ordered set
    problems: list[Problem] = []
    for name in names:
        lines = [name] if name in texts else lines_of_form.get(name, [])
        if not lines:
            problems.append(
                (name, f"the list of the split {split} contains it, lines.txt does not")
            )
        selected.update(dict.fromkeys(lines))
    return [LineFile(_image(line), texts[line], split) for line in selected], problems


def _form(line: str) -> str:
    return line.rpartition("-")[0]


def _image(line: str) -> str:
    form = _form(line)
    return f"{form.partition('-')[0]}/{form}/{line}.png"


def _join_punctuation(text: str) -> str:
    return re.sub(r" +([,.;:!?)])", r"\1", text)


def _first(root: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (root / name).is_file():
            return root / name
    raise FileNotFoundError(f"IAM requires {' or '.join(names)}, which are not in {root}")
