"""Fonts that are installed with matplotlib and Pillow."""

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
# TeX fonts have other glyphs for these characters. The italic font has a pound sign instead of the
# dollar sign, and all except the typewriter font have a dash instead of the underscore.
_TEX = ("cmb10", "cmr10", "cmss10", "cmti10")
_NOT_IN_TEX = frozenset("$<>\\^_`{|}~")
_TEX_TYPEWRITER = "cmtt10"


@dataclass(frozen=True)
class Typeface:
    """A style of a font.

    Attributes:
        name: name of the style.
        file: TrueType file, or None for the built-in font of Pillow.
        lacks: characters of the keyboard that the font does not contain.
    """

    name: str
    file: Path | None
    lacks: frozenset[str] = frozenset()

    def can_write(self, text: str) -> bool:
        """Return whether the font contains all characters of the text."""
        return set(KEYBOARD) - self.lacks >= set(text)

    def at(self, size: int) -> ImageFont.FreeTypeFont:
        """Return the font at a size in pixels.

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
        raise OSError("Pillow was built without FreeType; install the wheel of Pillow")
    return font


def typefaces() -> list[Typeface]:
    """Return the installed styles, in a fixed order.

    Releases of matplotlib contain different fonts. Missing fonts are skipped.

    Raises:
        OSError: if no font of matplotlib is installed.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    installed = [
        Typeface(name, folder / f"{name}.ttf", _NOT_IN_TEX if name in _TEX else frozenset())
        for name in (*_DEJAVU, *_STIX, *_TEX, _TEX_TYPEWRITER)
        if (folder / f"{name}.ttf").is_file()
    ]
    if not installed:
        raise OSError(f"no fonts of matplotlib in {folder}; reinstall matplotlib")
    return [*installed, Typeface("Pillow", None)]
