"""Tests that all kinds of images become grey lines of one height."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from examples.ocr.reading import read_line_image
from tests.examples.line_images import inked, png

GREY = inked(width=100, height=30)
EXPECTED = np.asarray(GREY)


def _palette() -> Image.Image:
    """A 4-bit image whose palette runs from white to black."""
    image = Image.fromarray((15 - EXPECTED // 17).astype(np.uint8), mode=None)
    image = image.convert("P")
    image.putdata(((255 - EXPECTED) // 17).ravel().tolist())
    image.putpalette([255 - 17 * (i // 3) for i in range(48)])
    return image


def _transparent() -> Image.Image:
    """Black everywhere, opaque only where there is ink."""
    image = Image.new("RGBA", GREY.size, (0, 0, 0, 0))
    image.putalpha(Image.fromarray(255 - EXPECTED))
    return image


KINDS = {
    "1-bit": GREY.convert("1"),
    "grey": GREY,
    "palette": _palette(),
    "colour": GREY.convert("RGB"),
    "transparent": _transparent(),
    "16-bit": Image.fromarray(EXPECTED.astype(np.uint16) * 257),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pixels_gives_the_same_line(kind: str) -> None:
    line = read_line_image(png(KINDS[kind]), height=30)
    assert line.dtype == np.uint8
    assert np.array_equal(line, EXPECTED)


def test_an_empty_image_is_refused() -> None:
    with pytest.raises(ValueError, match="all pixels are the same"):
        read_line_image(png(Image.new("L", (9, 9), 255)), 9)
