"""Lines of numbers, composed of the handwritten digits of scikit-learn (``load_digits``)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from examples.ocr.corpus import SPLITS
from examples.ocr.reading import PAPER

_INK = 16  # darkest value of the dataset
# Disjoint ranges of the dataset, so that no digit is in two splits.
_RANGES = {"train": (0.0, 0.7), "valid": (0.7, 0.85), "test": (0.85, 1.0)}
_SIZES = (30, 44)


@lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images (1797, 8, 8) uint8, dark on white, and their digits (1797,)."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    grey = PAPER - np.asarray(dataset.images) * (PAPER / _INK)
    return grey.round().astype(np.uint8), np.asarray(dataset.target)


def digits_of(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 8, 8) uint8, dark on white, and their digits (N,), of one split.

    Raises:
        ValueError: if there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    images, digits = _digits()
    first, last = (int(fraction * len(images)) for fraction in _RANGES[split])
    return images[first:last], digits[first:last]


def number_text(generator: np.random.Generator, max_characters: int) -> str:
    """Return random numbers of one to five digits, separated by spaces."""
    limit = int(generator.integers(max_characters // 3, max_characters + 1))
    text = ""
    while len(text) < limit:
        text += " " if text else ""
        text += "".join(str(digit) for digit in generator.integers(0, 10, generator.integers(1, 6)))
    return text[:limit].rstrip()


def write_number(text: str, split: str, generator: np.random.Generator) -> Image.Image:
    """Return an image of a line (mode "L"), composed of handwritten digits.

    Args:
        text: digits and spaces.
        split: split of the digits.
        generator: random generator of their selection, sizes and positions.

    Raises:
        ValueError: if the text contains other characters, or there is no such split.
    """
    if not text or set(text) - set("0123456789 "):
        raise ValueError(f"text must contain only digits and spaces, got {text!r}")
    images, digits = digits_of(split)
    size = int(generator.integers(*_SIZES))
    line = Image.new("L", (size * (len(text) + 1), size + 16), PAPER)
    x = int(generator.integers(2, 12))
    for character in text:
        if character == " ":
            x += int(size * generator.uniform(0.4, 0.7))
            continue
        glyph = _glyph(images[generator.choice(np.flatnonzero(digits == int(character)))], size)
        line.paste(glyph, (x, 8 + int(generator.integers(-3, 4))))
        x += glyph.width + int(size * generator.uniform(0.02, 0.18))
    return line.crop((0, 0, x + int(generator.integers(2, 12)), line.height))


def _glyph(image: np.ndarray, size: int) -> Image.Image:
    """Return an enlarged digit without the empty columns at its sides."""
    inked = np.flatnonzero((image < PAPER).any(axis=0))
    cut = Image.fromarray(np.ascontiguousarray(image[:, inked[0] : inked[-1] + 1]))
    width = max(1, round(cut.width * size / cut.height))
    return cut.resize((width, size), Image.Resampling.BICUBIC)
