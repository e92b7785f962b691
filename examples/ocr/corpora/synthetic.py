"""Lines made on the spot: texts printed in many fonts, and numbers in people's handwriting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import PIL
from PIL import Image

from examples.ocr.corpora.cache import Made, cached_lines
from examples.ocr.corpora.digits import number_text, write_number
from examples.ocr.corpora.fonts import Typeface, typefaces
from examples.ocr.corpora.rendering import render, worn
from examples.ocr.corpora.wording import Wording
from examples.ocr.corpus import SPLITS, Corpus
from examples.ocr.line import Line
from examples.ocr.reading import to_height

# Another number here gives other lines: the cache must not mix them.
_VERSION = 1
_TRIES = 1000


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

    No text stands in two lines, and no handwritten digit is in two splits.

    Args:
        train_lines, valid_lines, test_lines: how many.
        handwritten: share of lines that are numbers composed of handwritten digits.
        max_characters: of a line.
        wear: strength of distortion, blur and noise; 0 gives clean prints.
        height: pixels of all images.
        scale: of the widths, beyond what keeps the proportions.
        seed: of everything that is drawn.
        cache_dir: folder where the lines are kept; None keeps none.

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
    made_from = {
        **settings,
        "version": _VERSION,
        "fonts": matplotlib.__version__,
        "pillow": PIL.__version__,
    }
    made = cached_lines("synthetic", made_from, cache_dir, lambda: _make(settings))
    return made.corpus("synthetic")


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


def _make(settings: dict[str, Any]) -> Made:
    faces = typefaces()
    written: set[str] = set()
    splits: dict[str, list[Line]] = {}
    for number, (split, lines) in enumerate(settings["lines"].items()):
        splits[split] = []
        for position in range(lines):
            # A generator for each line: more lines of a split do not change those before.
            draw = np.random.default_rng([settings["seed"], number, position])
            by_hand = bool(draw.random() < settings["handwritten"])
            text = _new_text(draw, by_hand, settings["max_characters"], written)
            image = (
                worn(write_number(text, split, draw), draw, settings["wear"])
                if by_hand
                else _printed(text, faces, draw, settings["wear"])
            )
            splits[split].append(
                Line(
                    key=f"{'digits' if by_hand else 'print'}-{split}-{position:05d}",
                    text=text,
                    image=to_height(image, settings["height"], settings["scale"]),
                )
            )
    return Made(splits)


def _new_text(
    draw: np.random.Generator, by_hand: bool, max_characters: int, written: set[str]
) -> str:
    wording = Wording(draw, max_characters)
    for _ in range(_TRIES):
        text = number_text(draw, max_characters) if by_hand else wording.line()
        if text not in written:
            written.add(text)
            return text
    raise ValueError(
        f"no new text of at most {max_characters} characters after {len(written)} lines; ask for "
        "fewer lines or more characters"
    )


def _printed(
    text: str, faces: Sequence[Typeface], draw: np.random.Generator, wear: float
) -> Image.Image:
    able = [face for face in faces if face.can_write(text)]
    return render(text, able[int(draw.integers(len(able)))], draw, wear)
