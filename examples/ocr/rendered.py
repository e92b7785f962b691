"""Rendered lines: sentences from patterns, in fonts of matplotlib, with worn print."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.transforms import v2

from examples.ocr.lines import PAPER, Line, to_height

_FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "BolIta", "Italic")),
)
_SIZES = (28, 46)
_MARGIN = 8

WEAR = v2.Compose(
    [
        v2.RandomAffine(degrees=0, shear=(-7.0, 7.0), fill=1.0),
        v2.GaussianBlur(3, (0.1, 0.9)),
        v2.ColorJitter(brightness=(0.8, 1.0), contrast=(0.6, 1.0)),
        v2.GaussianNoise(sigma=0.04),
    ]
)
"""Slant, blur, grey ink and paper, and noise, for images from 0 to 1."""

# A placeholder {name} is replaced by a word of the list of that name, or by a number of the range.
_WORDS = {
    "adjective": "old new small great quiet broken yellow empty heavy narrow bright wooden early "
    "foreign careful honest distant gentle rapid useful simple strange warm grey silver northern",
    "noun": "house river garden letter captain window market engine village station bridge "
    "picture teacher winter journey kitchen harbour question machine forest doctor mountain "
    "library evening company history valley blanket lantern orchard judge quarry zebra",
    "nouns": "boxes pages apples tickets lamps chairs pounds copies sheets bottles horses keys",
    "past": "opened followed watched carried crossed painted measured closed found left kept "
    "described visited built sold repaired examined joined",
    "verb": "open follow watch carry cross paint measure close find leave keep describe visit",
    "place": "behind near under across from beside over beyond through toward inside around",
    "adverb": "slowly again once never always quickly together alone later perhaps quite soon",
    "name": "Anna Victor Judith Oliver Quentin Martha Felix Irene Walter Zoe Henry Xavier Clara "
    "Edward Nora George Laura Peter Una Kate Daniel Rose Samuel Yvonne Brook Lane Hill Ford",
    "title": "Mr. Mrs. Dr. Miss Captain",
    "month": "January February March April May June July August September October November",
}
_LISTS = {name: words.split() for name, words in _WORDS.items()}
_RANGES = {"count": (2, 1000), "day": (1, 32), "year": (1790, 2030), "percent": (1, 100)}
_SENTENCES = (
    "The {noun} {past} a {adjective} {noun}, but {name} {past} the {noun} {adverb}.",
    "{title} {name} {past} {count} {nouns} {place} the {adjective} {noun}.",
    "We {past} the {noun} {adverb} because they {past} the {adjective} {noun}.",
    '"Did you {verb} the {noun}?" {title} {name} asked {adverb}.',
    '"{name} will {verb} it!" said {name}; "the {noun} is {adjective}."',
    "On {day} {month} {year} {name} {past} the {noun}'s {adjective} {noun}.",
    "In {year} there were {count} {nouns} in the {noun}, {count} of them {adjective}.",
    "Who {past} the {noun} {place} {name}'s {noun}?",
    "{count} {nouns} at ${count}.{percent} each: ${count} ({percent}% off).",
    "No. {count}: {noun} & {noun}, {count} {nouns}, ${count} - {percent}",
)
_MAX_ATTEMPTS = 1000


def render_lines(
    *,
    height: int,
    train_lines: int = 2000,
    valid_lines: int = 200,
    test_lines: int = 200,
    max_characters: int = 32,
) -> dict[str, list[Line]]:
    """Render the lines of each split. All texts are different, and the same in every call.

    Args:
        height: height of all images in pixels.
        train_lines, valid_lines, test_lines: number of lines of each split.
        max_characters: maximum number of characters of a line.

    Raises:
        ValueError: if ``max_characters`` is too small for so many different lines.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    # Releases of matplotlib contain different fonts.
    fonts = [file for name in _FONTS if (file := folder / f"{name}.ttf").is_file()]
    numbers = {"train": train_lines, "valid": valid_lines, "test": test_lines}
    texts: set[str] = set()
    splits: dict[str, list[Line]] = {}
    with torch.random.fork_rng(devices=[]):
        for split, (name, number) in enumerate(numbers.items()):
            splits[name] = []
            for position in range(number):
                # One generator per line, so that a line does not depend on the number of lines.
                generator = np.random.default_rng([split, position])
                torch.manual_seed(int(generator.integers(2**63)))
                text = _new_text(generator, max_characters, texts)
                font = fonts[int(generator.integers(len(fonts)))]
                image = _print(text, font, int(generator.integers(*_SIZES)), height)
                splits[name].append(Line(key=f"{name}-{position:05d}", text=text, image=image))
    return splits


def _new_text(generator: np.random.Generator, max_characters: int, texts: set[str]) -> str:
    """Return a random text that is not in ``texts``, and add it there."""
    for _ in range(_MAX_ATTEMPTS):
        text = _text(generator, max_characters)
        if text not in texts:
            texts.add(text)
            return text
    raise ValueError(
        f"no new text of at most {max_characters} characters after {len(texts)} lines; use fewer "
        "lines or more characters"
    )


def _text(generator: np.random.Generator, max_characters: int) -> str:
    """Return whole words that may begin within a sentence, as on a page."""

    def fill_in(match: re.Match[str]) -> str:
        name = match[1]
        return str(generator.choice(_LISTS[name]) if name in _LISTS else
                   generator.integers(*_RANGES[name]))  # fmt: skip

    words = " ".join(
        re.sub(r"\{(\w+)\}", fill_in, str(generator.choice(_SENTENCES))) for _ in range(2)
    ).split()
    words = words[int(generator.integers(len(words) // 2)) :]
    limit = int(generator.integers(max_characters // 2, max_characters + 1))
    text = words[0]
    for word in words[1:]:
        if len(text) + 1 + len(word) > limit:
            break
        text = f"{text} {word}"
    return text[:limit]


def _print(text: str, font_file: Path, size: int, height: int) -> Tensor:
    """Return a printed line (1, ``height``, W) uint8, with random wear from torch's generator."""
    font = ImageFont.truetype(str(font_file), size)
    # The height of the font, because the height of a text depends on its characters.
    width, rows = round(font.getlength(text)) + 2 * _MARGIN, sum(font.getmetrics()) + 2 * _MARGIN
    image = Image.new("L", (width, rows), PAPER)
    ImageDraw.Draw(image).text((_MARGIN, _MARGIN), text, font=font, fill=0)
    worn = WEAR(to_height(image, height).float() / PAPER)
    return (PAPER * worn).round().to(torch.uint8)
