"""The 95 printable characters of ASCII, as in bmuf_adam 3.1, and their indices."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

KEYBOARD = "".join(chr(code) for code in range(32, 127))
"""The characters, in the order of their indices from 1."""

BLANK = 0
"""Index of the blank of CTC."""

NUM_CLASSES = len(KEYBOARD) + 1
"""Number of outputs of a model: characters plus blank."""

_INDICES = {character: index for index, character in enumerate(KEYBOARD, 1)}
# Replacements that Unicode's decompositions do not contain.
_ON_KEYBOARD = {
    **dict.fromkeys("‘’‚‛′`´ʼ", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **{"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ß": "ss", "ı": "i"},
    **{"⁄": "/", "×": "x", "·": ".", "•": "*", "°": "o", "¡": "!", "¿": "?", "£": "L", "€": "E"},
}
_FRACTION_SLASH = "⁄"


def encode(text: str) -> list[int]:
    """Return the index of each character.

    Raises:
        ValueError: if characters are not on the keyboard. The message names them.
    """
    unknown = sorted(set(text) - _INDICES.keys())
    if unknown:
        raise ValueError(f"characters {unknown} are not on the keyboard; replace them in {text!r}")
    return [_INDICES[character] for character in text]


def decode(indices: Sequence[int]) -> str:
    """Return the text of indices. Blanks, which also pad targets, are skipped."""
    return "".join(KEYBOARD[index - 1] for index in indices if index != BLANK)


def normalise(text: str) -> str:
    """Return the text with characters outside the keyboard replaced, if possible.

    White space becomes a single space. Typographic quotes become straight quotes, dashes become
    hyphens, ligatures two letters, and fractions "1/2". Accents are removed. Characters without a
    replacement are not changed, so that :func:`encode` names them in its error.
    """
    composed = unicodedata.normalize("NFC", " ".join(text.split()))
    return " ".join("".join(map(_replacement, composed)).split())


def _replacement(character: str) -> str:
    if character in _INDICES:
        return character
    decomposed = unicodedata.normalize("NFKD", character)
    plain = "".join(
        _ON_KEYBOARD.get(part, part) for part in decomposed if not unicodedata.combining(part)
    )
    # Without a space, "21½" would become "211/2".
    plain = f" {plain}" if _FRACTION_SLASH in decomposed and len(decomposed) > 1 else plain
    return plain if plain and set(plain) <= _INDICES.keys() else character


def frames_needed(target: Sequence[int]) -> int:
    """Return the number of frames that CTC needs for the target.

    CTC needs one frame for each character, and a blank between two equal characters.
    """
    return len(target) + sum(first == second for first, second in pairwise(target))
