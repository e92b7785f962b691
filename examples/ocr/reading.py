"""Images of lines, of any kind of pixels, to grey images of one height."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

PAPER = 255


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of an image file, read from its header alone.

    Raises:
        OSError: if the bytes are no image that Pillow knows.
    """
    with Image.open(io.BytesIO(data)) as image:
        return image.size


def scaled_width(size: tuple[int, int], height: int, scale: float = 1.0) -> int:
    """Width that an image of ``size`` (width, height) has at another height.

    Args:
        size: width and height in pixels.
        height: that it shall have.
        scale: of the width, beyond what keeps the proportions.
    """
    return max(1, round(size[0] * height / size[1] * scale))


def read_line_image(data: bytes, height: int, scale: float = 1.0) -> np.ndarray:
    """Read an image file as (height, W) uint8, ink dark on white.

    Black and white, grey, palette, colour and 16-bit images are all made grey; what is transparent
    is paper.

    Raises:
        OSError: if the bytes are no whole image.
        ValueError: if all pixels are the same: nothing is written there.
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
        # Pillow's conversion clips 16-bit values at 255.
        values = np.asarray(image).astype(np.float64)
        return Image.fromarray((values / 257).clip(0, 255).round().astype(np.uint8))
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        written = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, (PAPER, PAPER, PAPER, 255))
        return Image.alpha_composite(paper, written).convert("L")
    return image.convert("L")


def to_height(grey: Image.Image, height: int, scale: float = 1.0) -> np.ndarray:
    """Return the image (mode "L") as an array of this height; see :func:`scaled_width`."""
    width = scaled_width(grey.size, height, scale)
    # Pillow's filter grows with the reduction, so that thin strokes of 1-bit images become grey.
    return np.array(grey.resize((width, height), Image.Resampling.BILINEAR))
