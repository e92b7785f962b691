"""Synthetic lines: texts that are rendered in many fonts, and handwritten numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import PIL
from PIL import Image

from examples.ocr.corpora.cache import LoadedLines, cached_lines
from examples.ocr.corpora.digits import number_text, write_number
from examples.ocr.corpora.fonts import Typeface, typefaces
from examples.ocr.corpora.rendering import add_wear, render
from examples.ocr.corpora.wording import Wording
from examples.ocr.corpus import SPLITS, Corpus
from examples.ocr.line import Line
from examples.ocr.reading import to_height

# Part of the cache key. Increase it with every change that changes the lines.
_VERSION = 1
_MAX_ATTEMPTS = 1000


def build_synthetic_corpus(
    *,
    train_lines: int = 2000,
    valid_lines: int = 200,
    test_lines: int = 200,
    handwritten: float = 0.2,
    max_characters: int = 32,
    wear: float = 1.0,
    height: int = 60,
    scale: float = 1.0,
    seed: int = 0,
    cache_dir: str | Path | None = None,
) -> Corpus:
    """Render lines of text with distortion, blur and noise.

    All texts are different, and no handwritten digit is in two splits.

    Args:
        train_lines, valid_lines, test_lines: number of lines of each split.
        handwritten: fraction of lines that are numbers composed of handwritten digits.
        max_characters: maximum number of characters of a line.
        wear: strength of distortion, blur and noise. 0: clean prints.
        height: height of all images in pixels.
        scale: additional factor of the widths. 1 preserves the aspect ratio.
        seed: seed of the random generators.
        cache_dir: directory of the cache. None: no cache.

    Raises:
        ValueError: if a number is out of range.
    """
    settings = {
        "lines": dict(zip(SPLITS, (train_lines, valid_lines, test_lines), strict=True)),
        "handwritten": handwritten,
        "max_characters": max_characters,
        "wear": wear,
        "height": height,
        "scale": scale,
        "seed": seed,
    }
    _check(settings)
    dependencies = {
        **settings,
        "version": _VERSION,
        "fonts": matplotlib.__version__,
        "pillow": PIL.__version__,
    }
    loaded = cached_lines("synthetic", dependencies, cache_dir, lambda: _render_lines(settings))
    return loaded.corpus("synthetic")


def _check(settings: dict[str, Any]) -> None:
    for split, lines in settings["lines"].items():
        if lines < 1:
            raise ValueError(f"{split}_lines must be at least 1, got {lines}")
    if not 0 <= settings["handwritten"] <= 1:
        raise ValueError(f"handwritten must be from 0 to 1, got {settings['handwritten']}")
    if settings["height"] < 8:
        raise ValueError(f"height must be at least 8, got {settings['height']}")
    if settings["scale"] <= 0:
        raise ValueError(f"scale must be above 0, got {settings['scale']}")


def _render_lines(settings: dict[str, Any]) -> LoadedLines:
    faces = typefaces()
    texts: set[str] = set()
    splits: dict[str, list[Line]] = {}
    for number, (split, lines) in enumerate(settings["lines"].items()):
        splits[split] = []
        for position in range(lines):
            # One generator per line, so that a line does not depend on the number of lines.
            generator = np.random.default_rng([settings["seed"], number, position])
            handwritten = bool(generator.random() < settings["handwritten"])
            text = _new_text(generator, handwritten, settings["max_characters"], texts)
            image = (
                add_wear(write_number(text, split, generator), generator, settings["wear"])
                if handwritten
                else _print_text(text, faces, generator, settings["wear"])
            )
            splits[split].append(
                Line(
                    key=f"{'digits' if handwritten else 'print'}-{split}-{position:05d}",
                    text=text,
                    image=to_height(image, settings["height"], settings["scale"]),
                )
            )
    return LoadedLines(splits)


def _new_text(
    generator: np.random.Generator, handwritten: bool, max_characters: int, texts: set[str]
) -> str:
    """Return a random text that is not in ``texts``, and add it there."""
    wording = Wording(generator, max_characters)
    for _ in range(_MAX_ATTEMPTS):
        text = number_text(generator, max_characters) if handwritten else wording.line()
        if text not in texts:
            texts.add(text)
            return text
    raise ValueError(
        f"no new text of at most {max_characters} characters after {len(texts)} lines; use fewer "
        "lines or more characters"
    )


def _print_text(
    text: str, faces: Sequence[Typeface], generator: np.random.Generator, wear: float
) -> Image.Image:
    suitable = [face for face in faces if face.can_write(text)]
    return render(text, suitable[int(generator.integers(len(suitable)))], generator, wear)
