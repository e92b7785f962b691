"""Lines of numbers from single digits that people wrote: scikit-learn's ``load_digits``."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from examples.ocr.corpus import SPLITS
from examples.ocr.reading import PAPER

_INK = 16  # the darkest value of the data set
# Parts of the data set, so that no digit of one split is seen in another.
_PARTS = {"train": (0.0, 0.7), "valid": (0.7, 0.85), "test": (0.85, 1.0)}
_SIZES = (30, 44)


@lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (1797, 8, 8) uint8, dark on white, and what they show."""
    from sklearn.datasets import load_digits

    data = load_digits()
    grey = PAPER - np.asarray(data.images) * (PAPER / _INK)
    return grey.round().astype(np.uint8), np.asarray(data.target)


def digits_of(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 8, 8) uint8, dark on white, and digits (N,) of one split.

    Raises:
        ValueError: if there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    images, shown = _digits()
    first, last = (int(part * len(images)) for part in _PARTS[split])
    return images[first:last], shown[first:last]


def number_text(draw: np.random.Generator, max_characters: int) -> str:
    """Return numbers of one to five digits with spaces between them."""
    limit = int(draw.integers(max_characters // 3, max_characters + 1))
    text = ""
    while len(text) < limit:
        text += " " if text else ""
        text += "".join(str(digit) for digit in draw.integers(0, 10, draw.integers(1, 6)))
    return text[:limit].rstrip()


def write_number(text: str, split: str, draw: np.random.Generator) -> Image.Image:
    """Compose an image (mode "L") of a line from digits that people wrote.

    Args:
        text: digits and spaces.
        split: whose digits are used.
        draw: which of them, their size, and where they stand.

    Raises:
        ValueError: if there is anything else in the text, or no split of that name.
    """
    if not text or set(text) - set("0123456789 "):
        raise ValueError(f"only digits and spaces can be written, got {text!r}")
    images, shown = digits_of(split)
    size = int(draw.integers(*_SIZES))
    line = Image.new("L", (size * (len(text) + 1), size + 16), PAPER)
    x = int(draw.integers(2, 12))
    for character in text:
        if character == " ":
            x += int(size * draw.uniform(0.4, 0.7))
            continue
        glyph = _glyph(images[draw.choice(np.flatnonzero(shown == int(character)))], size)
        line.paste(glyph, (x, 8 + int(draw.integers(-3, 4))))
        x += glyph.width + int(size * draw.uniform(0.02, 0.18))
    return line.crop((0, 0, x + int(draw.integers(2, 12)), line.height))


def _glyph(image: np.ndarray, size: int) -> Image.Image:
    """Enlarge a digit, without the empty columns at its sides."""
    inked = np.flatnonzero((image < PAPER).any(axis=0))
    cut = Image.fromarray(np.ascontiguousarray(image[:, inked[0] : inked[-1] + 1]))
    width = max(1, round(cut.width * size / cut.height))
    return cut.resize((width, size), Image.Resampling.BICUBIC)
