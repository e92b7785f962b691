"""A corpus from image files: selection of lines, reading, and a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.file_source import FileSource
from examples.ocr.corpora.cache import LoadedLines, cached_lines
from examples.ocr.corpora.line_file import LineFile
from examples.ocr.corpus import SPLITS, Corpus
from examples.ocr.line import Line
from examples.ocr.reading import image_size, read_line_image, scaled_width
from examples.ocr.unreadable import OnUnreadable, Problem, report_problems


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selection of lines and size of images.

    Attributes:
        height: height of all images in pixels (60 in bmuf_adam 3.1).
        scale: additional factor of the widths. 1 preserves the aspect ratio, 0.5 halves the
            computation.
        max_width: maximum width of a line in pixels, after scaling. None: no limit.
        max_lines: maximum number of lines of the train split, at even intervals. None: no limit.
        max_eval_lines: maximum number of lines of the valid and of the test split.

    Raises:
        ValueError: if a number is out of range.
    """

    height: int = 60
    scale: float = 1.0
    max_width: int | None = None
    max_lines: int | None = None
    max_eval_lines: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, value in asdict(self).items():
            if value is not None and not (value > 0 if name == "scale" else value >= 1):
                condition = "above 0" if name == "scale" else "at least 1"
                raise ValueError(f"{name} must be {condition}, got {value}")

    def limit(self, lines: Sequence[LineFile], split: str) -> list[LineFile]:
        """Return the lines, or lines at even intervals if there are more than the maximum."""
        maximum = self.max_lines if split == "train" else self.max_eval_lines
        if maximum is None or maximum >= len(lines):
            return list(lines)
        return [lines[i * len(lines) // maximum] for i in range(maximum)]


def read_corpus(
    name: str,
    files: Sequence[LineFile],
    source: FileSource,
    *,
    selection: Selection,
    problems: Sequence[Problem] = (),
    on_unreadable: OnUnreadable = "error",
    cache_dir: str | Path | None = None,
) -> Corpus:
    """Read the images of the selected lines.

    Args:
        name: name of the corpus.
        files: all listed lines.
        source: source of the images.
        selection: selection of lines and size of images.
        problems: problems of the listing, reported together with those of the images.
        on_unreadable: ``"error"``: raise an error for lines that cannot be read. ``"skip"``: log a
            warning.
        cache_dir: directory of the cache. None: no cache.

    Raises:
        ValueError: if lines cannot be read and ``on_unreadable`` is ``"error"``, or if there are no
            lines.
    """
    dependencies = {
        "files": list(files),
        "source": source.state(file.key for file in files),
        "selection": asdict(selection),
    }

    def make() -> LoadedLines:
        return _read(files, source, selection)

    loaded = cached_lines(name, dependencies, cache_dir, make)
    report_problems([*problems, *loaded.problems], on_unreadable, f"corpus {name}")
    return loaded.corpus(name)


def _read(files: Sequence[LineFile], source: FileSource, selection: Selection) -> LoadedLines:
    """Read the selected lines. Only the headers of the other images are read."""
    problems: list[Problem] = []
    candidates: dict[str, list[LineFile]] = {split: [] for split in SPLITS}
    for file in files:
        try:
            if not file.text.strip():
                raise ValueError("it has no text")
            size = image_size(source.read(file.key))
        # Pillow, zipfile and the file system raise many types. All of them are reported.
        except Exception as error:
            problems.append((file.key, _reason(error)))
            continue
        width = scaled_width(size, selection.height, selection.scale)
        if selection.max_width is None or width <= selection.max_width:
            candidates[file.split].append(file)
    splits: dict[str, list[Line]] = {split: [] for split in SPLITS}
    for split, of_split in candidates.items():
        for file in selection.limit(of_split, split):
            try:
                data = source.read(file.key)
                image = read_line_image(data, selection.height, selection.scale)
            except Exception as error:
                problems.append((file.key, _reason(error)))
                continue
            splits[split].append(Line(key=file.key, text=file.text, image=image))
    return LoadedLines(splits, problems)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
