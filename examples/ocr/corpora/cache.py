"""A cache of corpora on disk, shared by all ranks and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array
from examples.ocr.corpus import SPLITS, Corpus
from examples.ocr.line import Line
from examples.ocr.unreadable import Problem


@dataclass(frozen=True)
class LoadedLines:
    """Lines by split, and the lines that could not be read.

    Attributes:
        splits: lines of each split, with images of one height.
        problems: names of the lines that could not be read, with the reasons.
    """

    splits: Mapping[str, Sequence[Line]]
    problems: Sequence[Problem] = ()

    def corpus(self, name: str) -> Corpus:
        """Return the lines as a corpus.

        Raises:
            ValueError: if there are no lines, or the keys of a split are not unique.
        """
        return Corpus(name=name, **{split: list(self.splits.get(split, ())) for split in SPLITS})


def cached_lines(
    name: str,
    dependencies: Mapping[str, Any],
    cache_dir: str | Path | None,
    make: Callable[[], LoadedLines],
) -> LoadedLines:
    """Return lines from the cache, or from ``make`` if they are not cached.

    See :func:`~examples.array_cache.cached_arrays` for the arguments.
    """
    dependencies = {**dependencies, "format": 1}
    return _unpack(cached_arrays(f"lines-{name}", dependencies, cache_dir, lambda: _pack(make())))


def _pack(loaded: LoadedLines) -> Arrays:
    """Return arrays with all lines. One array holds all pixels, since many arrays load slowly."""
    lines = [(split, line) for split, of_split in loaded.splits.items() for line in of_split]
    pixels = [np.empty(0, np.uint8), *(line.image.ravel() for _, line in lines)]
    shapes = np.array([line.image.shape for _, line in lines], dtype=np.int64)
    return {
        "pixels": np.concatenate(pixels),
        "shapes": shapes.reshape(len(lines), 2),
        "lines": as_json_array([(split, line.key, line.text) for split, line in lines]),
        "problems": as_json_array(list(loaded.problems)),
    }


def _unpack(arrays: Arrays) -> LoadedLines:
    splits: dict[str, list[Line]] = {}
    start = 0
    for (split, key, text), shape in zip(
        from_json_array(arrays["lines"]), arrays["shapes"], strict=True
    ):
        end = start + int(shape.prod())
        image = arrays["pixels"][start:end].reshape(shape)
        splits.setdefault(split, []).append(Line(key=key, text=text, image=image))
        start = end
    problems = [(str(key), str(reason)) for key, reason in from_json_array(arrays["problems"])]
    return LoadedLines(splits, problems)
