"""Random distortion of line images, different in each epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from examples.ocr.reading import PAPER


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random slant, size, brightness, blur and noise, which depend on (seed, epoch, line).

    Attributes:
        seed: seed of the random generators.
        slant: maximum shift between adjacent rows in pixels, in both directions.
        stretch: maximum relative change of the width, in both directions.
        shrink: maximum relative decrease of the height of the writing. Paper fills the rest.
        fade: maximum relative decrease of the contrast.
        blur: maximum standard deviation of the blur, relative to the height.
        noise: maximum standard deviation of the noise, in grey levels from 0 to 255.

    Raises:
        ValueError: if a bound is negative or too large.
    """

    seed: int = 0
    slant: float = 0.25
    stretch: float = 0.1
    shrink: float = 0.15
    fade: float = 0.3
    blur: float = 0.015
    noise: float = 8.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name in ("slant", "stretch", "shrink", "fade", "blur", "noise"):
            value = getattr(self, name)
            maximum = {"stretch": 0.5, "shrink": 0.5, "fade": 0.9}.get(name, float("inf"))
            if not 0 <= value <= maximum:
                raise ValueError(f"{name} must be from 0 to {maximum}, got {value}")

    def __call__(
        self, image: np.ndarray, *, epoch: int, position: int, min_width: int = 1
    ) -> np.ndarray:
        """Return the distorted image of a line (H, W') uint8.

        Args:
            image: (H, W) uint8, dark on white.
            epoch: index of the epoch.
            position: position of the line in its split.
            min_width: minimum width of the result in pixels, which the CTC loss of the text
                requires. If the line is already narrower, its width does not decrease.
        """
        generator = np.random.default_rng([self.seed, epoch, position])
        image = self._warp(image, generator, min_width)
        if generator.random() < 0.5:
            sigma = generator.uniform(0, self.blur) * image.shape[0]
            blurred = Image.fromarray(image).filter(ImageFilter.GaussianBlur(sigma))
            image = np.asarray(blurred)
        return self._shade(image, generator)

    def _warp(
        self, image: np.ndarray, generator: np.random.Generator, min_width: int
    ) -> np.ndarray:
        height, width = image.shape
        stretched = round(width * (1 + generator.uniform(-self.stretch, self.stretch)))
        new_width = max(stretched, min(min_width, width), 1)
        slant = generator.uniform(-self.slant, self.slant)
        size = 1 - generator.uniform(0, self.shrink)
        top = generator.uniform(0, 1 - size) * height
        # The middle row keeps its position. The image is compressed by the width of the slant, so
        # that no part of the writing leaves it.
        room = abs(slant) * height
        across = (width + room) / new_width
        # Pixel (x, y) of the output is pixel (a x + b y + c, d x + e y + f) of the input.
        matrix = (across, slant, -room / 2 - slant * height / 2, 0.0, 1 / size, -top / size)
        return np.asarray(
            Image.fromarray(image).transform(
                (new_width, height),
                Image.Transform.AFFINE,
                matrix,
                Image.Resampling.BILINEAR,
                fillcolor=_shade_of_paper(image),
            )
        )

    def _shade(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        contrast = 1 - generator.uniform(0, self.fade)
        brightness = generator.uniform(0, 1 - contrast) * PAPER
        sigma = generator.uniform(0, self.noise)
        grey = image.astype(np.float32) * contrast + brightness
        grey += generator.standard_normal(image.shape, dtype=np.float32) * sigma
        return grey.clip(0, PAPER).astype(np.uint8)


def _shade_of_paper(image: np.ndarray) -> int:
    """Return the median grey level, which is that of the paper."""
    # Every fourth pixel in each direction is sufficient for the median.
    return int(np.median(image[::4, ::4]))
