"""Rendering of texts as images of worn prints."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from examples.ocr.corpora.fonts import Typeface
from examples.ocr.reading import PAPER

_SIZES = (28, 46)
_MARGIN = 10
_BLACK_AND_WHITE = 0.2  # probability of a black and white image


def render(
    text: str, typeface: Typeface, generator: np.random.Generator, wear: float = 1.0
) -> Image.Image:
    """Return an image of a printed line, with random wear.

    Args:
        text: text of the line.
        typeface: font that contains the characters of the text.
        generator: random generator of the size, the margins and the wear.
        wear: strength of distortion, blur and noise. 0: a clean print.

    Raises:
        ValueError: if the font does not contain all characters of the text, or ``wear`` is
            negative.
    """
    if not typeface.can_write(text):
        raise ValueError(f"{typeface.name} cannot write {sorted(set(text) & typeface.lacks)}")
    font = typeface.at(int(generator.integers(*_SIZES)))
    left, top, right, bottom = font.getbbox(text)
    margins = generator.integers(2, _MARGIN, 4)
    # The height of the font, because the height of a text depends on its characters.
    ascent, descent = font.getmetrics()
    size = (
        round(right - left) + int(margins[0] + margins[1]),
        max(ascent + descent, round(bottom)) + int(margins[2] + margins[3]),
    )
    image = Image.new("L", size, PAPER)
    ImageDraw.Draw(image).text((int(margins[0]) - left, int(margins[2])), text, font=font, fill=0)
    return add_wear(image, generator, wear)


def add_wear(image: Image.Image, generator: np.random.Generator, wear: float = 1.0) -> Image.Image:
    """Return an image (mode "L") with random slant, warping, blur, stains and noise."""
    if wear < 0:
        raise ValueError(f"wear must be at least 0, got {wear}")
    if wear == 0:
        return image
    image = _slant(image, generator.uniform(-0.12, 0.12) * wear)
    pixels = _warp(np.asarray(image, dtype=np.float32), generator, wear)
    image = Image.fromarray(pixels.round().astype(np.uint8))
    image = image.filter(ImageFilter.GaussianBlur(generator.uniform(0.2, 1.3) * wear))
    pixels = _stain(np.asarray(image, dtype=np.float32), generator, wear)
    pixels += (
        generator.standard_normal(pixels.shape, dtype=np.float32) * generator.uniform(0, 14) * wear
    )
    if generator.random() < _BLACK_AND_WHITE:  # like the images of some scanners
        pixels = np.where(pixels < generator.uniform(0.5, 0.65) * pixels.max(), 0.0, float(PAPER))
    return Image.fromarray(pixels.clip(0, PAPER).astype(np.uint8))


def _slant(image: Image.Image, slant: float) -> Image.Image:
    room = round(abs(slant) * image.height) + 1
    return image.transform(
        (image.width + room, image.height),
        Image.Transform.AFFINE,
        (1, slant, -room / 2 - slant * image.height / 2, 0, 1, 0),
        Image.Resampling.BILINEAR,
        fillcolor=PAPER,
    )


def _warp(pixels: np.ndarray, generator: np.random.Generator, wear: float) -> np.ndarray:
    """Shift columns vertically by the sum of two waves, and rows horizontally by one wave."""
    height, width = pixels.shape
    columns, rows = np.arange(width), np.arange(height)
    down = sum(
        generator.uniform(0, most)
        * np.sin(columns * 2 * np.pi / generator.uniform(*period) + phase)
        for most, period, phase in (
            (2.0, (300, 900), generator.uniform(0, 7)),
            (0.8, (40, 120), generator.uniform(0, 7)),
        )
    )
    across = generator.uniform(0, 1.0) * np.sin(
        rows * 2 * np.pi / generator.uniform(20, 60) + generator.uniform(0, 7)
    )
    padded = np.pad(pixels, 4, constant_values=PAPER)
    y = (rows[:, None] + wear * np.asarray(down)[None, :] + 4).clip(0, height + 6)
    x = (columns[None, :] + wear * across[:, None] + 4).clip(0, width + 6)
    y0, x0 = y.astype(np.int64), x.astype(np.int64)
    below, right = (y - y0).astype(np.float32), (x - x0).astype(np.float32)
    upper = padded[y0, x0] * (1 - right) + padded[y0, x0 + 1] * right
    lower = padded[y0 + 1, x0] * (1 - right) + padded[y0 + 1, x0 + 1] * right
    return upper * (1 - below) + lower * below


def _stain(pixels: np.ndarray, generator: np.random.Generator, wear: float) -> np.ndarray:
    """Replace black by a grey, and white by a gradient along the line."""
    ink = generator.uniform(0, 90) * min(wear, 2.0)
    left, right = PAPER - generator.uniform(0, 50, 2) * min(wear, 2.0)
    paper = np.linspace(left, right, pixels.shape[1], dtype=np.float32)
    return ink + (paper - ink) * pixels / PAPER
