"""The fonts that come with matplotlib and Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
from PIL import ImageFont

from examples.ocr.alphabet import KEYBOARD

_SANS = ("", "-Bold", "-BoldOblique", "-Oblique")
_DEJAVU = (
    *(f"DejaVuSans{style}" for style in _SANS),
    *(f"DejaVuSansMono{style}" for style in _SANS),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-BoldItalic", "-Italic")),
)
_STIX = tuple(f"STIXGeneral{style}" for style in ("", "Bol", "BolIta", "Italic"))
# TeX's fonts have other signs in these places: the italic a pound for the dollar, all but the
# typewriter a dash for the underscore.
_TEX = ("cmb10", "cmr10", "cmss10", "cmti10")
_NOT_IN_TEX = frozenset("$<>\\^_`{|}~")
_TEX_TYPEWRITER = "cmtt10"


@dataclass(frozen=True)
class Typeface:
    """One style of a font.

    Attributes:
        name: of the style.
        file: TrueType file, or None for the font inside Pillow.
        lacks: characters of the keyboard that it cannot write.
    """

    name: str
    file: Path | None
    lacks: frozenset[str] = frozenset()

    def can_write(self, text: str) -> bool:
        """Whether it has all characters of the text."""
        return set(KEYBOARD) - self.lacks >= set(text)

    def at(self, size: int) -> ImageFont.FreeTypeFont:
        """Return the font at this size in pixels.

        Raises:
            OSError: if the file is missing.
        """
        return _font(self.file, size)


@lru_cache(maxsize=512)
def _font(file: Path | None, size: int) -> ImageFont.FreeTypeFont:
    if file is not None:
        return ImageFont.truetype(str(file), size)
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise OSError("this Pillow was built without FreeType; install one of the usual wheels")
    return font


def typefaces() -> list[Typeface]:
    """Return the styles that are there, always in the same order.

    Releases of matplotlib differ in what they bring; what is missing is left out.

    Raises:
        OSError: if none of matplotlib's fonts is there.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = [
        Typeface(name, folder / f"{name}.ttf", _NOT_IN_TEX if name in _TEX else frozenset())
        for name in (*_DEJAVU, *_STIX, *_TEX, _TEX_TYPEWRITER)
        if (folder / f"{name}.ttf").is_file()
    ]
    if not found:
        raise OSError(f"matplotlib should have its fonts in {folder}; found none of them")
    return [*found, Typeface("Pillow", None)]
