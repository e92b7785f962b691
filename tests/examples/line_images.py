"""Draws images of text lines for tests of the examples."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def inked(width: int = 120, height: int = 40, seed: int = 0) -> Image.Image:
    """White image of mode "L" with a few dark strokes."""
    draw = np.random.default_rng(seed)
    pixels = np.full((height, width), 255, np.uint8)
    for x in draw.integers(0, width - 3, max(1, width // 12)):
        pixels[height // 4 : -height // 4, x : x + 3] = 0
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    """Bytes of the image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def save(path: Path, **kwargs: int) -> None:
    """Write an image, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    inked(**kwargs).save(path)
