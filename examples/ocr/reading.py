"""Reading of image files as grey images of one height."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

PAPER = 255


def image_size(data: bytes) -> tuple[int, int]:
    """Return the width and height of an image file, from its header.

    Raises:
        OSError: if the bytes are not an image in a format that Pillow supports.
    """
    with Image.open(io.BytesIO(data)) as image:
        return image.size


def scaled_width(size: tuple[int, int], height: int, scale: float = 1.0) -> int:
    """Return the width of an image after scaling, at least 1.

    Args:
        size: width and height of the image in pixels.
        height: height after scaling.
        scale: additional factor of the width. 1 preserves the aspect ratio.
    """
    return max(1, round(size[0] * height / size[1] * scale))


def read_line_image(data: bytes, height: int, scale: float = 1.0) -> np.ndarray:
    """Read an image file as (height, W) uint8.

    Black and white, palette, colour and 16-bit images are converted to grey. Transparent pixels
    become paper.

    Raises:
        OSError: if the bytes are not a complete image.
        ValueError: if all pixels are the same, so that the image contains no text.
    """
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        grey = as_grey(image)
    if len(set(grey.getextrema())) == 1:
        raise ValueError("all pixels are the same")
    return to_height(grey, height, scale)


def as_grey(image: Image.Image) -> Image.Image:
    """Return the image in Pillow's mode "L"."""
    if image.mode.startswith("I"):
        # The conversion of Pillow clips 16-bit values at 255.
        values = np.asarray(image).astype(np.float64)
        return Image.fromarray((values / 257).clip(0, 255).round().astype(np.uint8))
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (PAPER, PAPER, PAPER, 255))
        return Image.alpha_composite(paper, rgba).convert("L")
    return image.convert("L")


def to_height(grey: Image.Image, height: int, scale: float = 1.0) -> np.ndarray:
    """Return the image (mode "L") as an array of ``height`` rows. See :func:`scaled_width`."""
    width = scaled_width(grey.size, height, scale)
    # The filter of Pillow grows with the reduction, so that thin strokes become grey.
    return np.array(grey.resize((width, height), Image.Resampling.BILINEAR))
