"""Image files to a corpus: choose lines, read them, keep them in a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.file_source import FileSource
from examples.ocr.corpora.cache import Made, cached_lines
from examples.ocr.corpora.line_file import LineFile
from examples.ocr.corpus import SPLITS, Corpus
from examples.ocr.line import Line
from examples.ocr.reading import image_size, read_line_image, scaled_width
from examples.ocr.unreadable import OnUnreadable, Problem, settle


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which lines are read, and at what size.

    Attributes:
        height: pixels of all images (60 in bmuf_adam 3.1).
        scale: of the widths, beyond what keeps the proportions; 0.5 halves the work.
        max_width: pixels, after scaling, of the widest line taken; None takes all.
        max_lines: most lines of the train split, evenly spread over it; None takes all.
        max_eval_lines: the same of the valid and of the test split.

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
                least = "above 0" if name == "scale" else "at least 1"
                raise ValueError(f"{name} must be {least}, got {value}")

    def spread(self, lines: Sequence[LineFile], split: str) -> list[LineFile]:
        """Return at most as many lines of the split as are wanted, evenly spread."""
        most = self.max_lines if split == "train" else self.max_eval_lines
        if most is None or most >= len(lines):
            return list(lines)
        return [lines[i * len(lines) // most] for i in range(most)]


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
    """Read the images of the chosen lines.

    Args:
        name: of the corpus.
        files: all lines that are listed.
        source: of the images.
        selection: which of them, and their size.
        problems: of the listing, reported together with those of the images.
        on_unreadable: ``"error"`` raises where lines cannot be read, ``"skip"`` warns.
        cache_dir: folder where the read images are kept; None keeps none.

    Raises:
        ValueError: if lines cannot be read and shall not be skipped, or there are none.
    """
    made_from = {
        "files": list(files),
        "source": source.state(file.key for file in files),
        "selection": asdict(selection),
    }

    def make() -> Made:
        return _read(files, source, selection)

    made = cached_lines(name, made_from, cache_dir, make)
    settle([*problems, *made.problems], on_unreadable, f"corpus {name}")
    return made.corpus(name)


def _read(files: Sequence[LineFile], source: FileSource, selection: Selection) -> Made:
    """Read what the selection wants; only the chosen lines are read in full."""
    problems: list[Problem] = []
    narrow: dict[str, list[LineFile]] = {split: [] for split in SPLITS}
    for file in files:
        try:
            if not file.text.strip():
                raise ValueError("it has no text")
            size = image_size(source.read(file.key))
        # Pillow, zipfile and the file system raise many types; all of them end in the list.
        except Exception as error:
            problems.append((file.key, _reason(error)))
            continue
        width = scaled_width(size, selection.height, selection.scale)
        if selection.max_width is None or width <= selection.max_width:
            narrow[file.split].append(file)
    splits: dict[str, list[Line]] = {split: [] for split in SPLITS}
    for split, of_split in narrow.items():
        for file in selection.spread(of_split, split):
            try:
                data = source.read(file.key)
                image = read_line_image(data, selection.height, selection.scale)
            except Exception as error:
                problems.append((file.key, _reason(error)))
                continue
            splits[split].append(Line(key=file.key, text=file.text, image=image))
    return Made(splits, problems)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
