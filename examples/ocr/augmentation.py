"""Each epoch sees a line a little otherwise than before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from examples.ocr.reading import PAPER


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Slant, size, brightness, blur and noise, each drawn anew for (seed, epoch, line).

    Attributes:
        seed: of the draws.
        slant: most pixels that a row shifts against the row below, either way.
        stretch: most relative change of the width, either way.
        shrink: most relative decrease of the writing's height; paper fills what is left.
        fade: most of the range of greys that contrast loses.
        blur: most standard deviation of the blur, as a part of the height.
        noise: most standard deviation of the noise, in greys from 0 to 255.

    Raises:
        ValueError: if a bound is negative, or so large that nothing of a line would be left.
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
            most = {"stretch": 0.5, "shrink": 0.5, "fade": 0.9}.get(name, float("inf"))
            if not 0 <= value <= most:
                raise ValueError(f"{name} must be from 0 to {most}, got {value}")

    def __call__(
        self, image: np.ndarray, *, epoch: int, position: int, min_width: int = 1
    ) -> np.ndarray:
        """Return the line as this epoch sees it: (H, W') uint8.

        Args:
            image: (H, W) uint8, dark on white.
            epoch: that it is for.
            position: of the line in its split.
            min_width: pixels that the line keeps, so that its text still has room for CTC; a line
                that is narrower as it stands is not made narrower.
        """
        draw = np.random.default_rng([self.seed, epoch, position])
        image = self._warp(image, draw, min_width)
        if draw.random() < 0.5:
            sigma = draw.uniform(0, self.blur) * image.shape[0]
            blurred = Image.fromarray(image).filter(ImageFilter.GaussianBlur(sigma))
            image = np.asarray(blurred)
        return self._shade(image, draw)

    def _warp(self, image: np.ndarray, draw: np.random.Generator, min_width: int) -> np.ndarray:
        height, width = image.shape
        wanted = round(width * (1 + draw.uniform(-self.stretch, self.stretch)))
        new_width = max(wanted, min(min_width, width), 1)
        slant = draw.uniform(-self.slant, self.slant)
        size = 1 - draw.uniform(0, self.shrink)
        top = draw.uniform(0, 1 - size) * height
        # The slant turns about the middle row; squeezing makes room for what it moves outwards.
        room = abs(slant) * height
        across = (width + room) / new_width
        # Output (x, y) takes the pixel (a x + b y + c, d x + e y + f) of the input.
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

    def _shade(self, image: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        contrast = 1 - draw.uniform(0, self.fade)
        brightness = draw.uniform(0, 1 - contrast) * PAPER
        sigma = draw.uniform(0, self.noise)
        grey = image.astype(np.float32) * contrast + brightness
        grey += draw.standard_normal(image.shape, dtype=np.float32) * sigma
        return grey.clip(0, PAPER).astype(np.uint8)


def _shade_of_paper(image: np.ndarray) -> int:
    """Most of a line is paper; every fourth pixel tells its shade as well as all do."""
    return int(np.median(image[::4, ::4]))
