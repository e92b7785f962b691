"""The characters of a model's outputs, and their indices."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

KEYBOARD = "".join(chr(code) for code in range(32, 127))
"""The 95 printable characters of ASCII, as in bmuf_adam 3.1."""

BLANK = 0
"""Index of the blank of CTC."""

# Replacements that Unicode's decompositions do not contain.
_ON_KEYBOARD = {
    **dict.fromkeys("‘’‚‛′`´ʼ", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **{"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ß": "ss", "ı": "i"},
    **{"⁄": "/", "×": "x", "·": ".", "•": "*", "°": "o", "¡": "!", "¿": "?"},
    **{"£": "L", "€": "E", "π": "pi"},
}
_FRACTION_SLASH = "⁄"


@dataclass(frozen=True)
class Alphabet:
    """Characters in the order of their indices. The blank has index 0, the first character 1.

    Args:
        characters: different characters, without the blank. The default is the keyboard with 95.

    Raises:
        ValueError: if there are no characters, or they are not all different.
    """

    characters: str = KEYBOARD
    _indices: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the characters, and assign indices to them."""
        indices = {character: index for index, character in enumerate(self.characters, 1)}
        if not indices or len(indices) != len(self.characters):
            raise ValueError(
                f"characters must be at least one and each different, got {self.characters!r}"
            )
        object.__setattr__(self, "_indices", indices)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Alphabet:
        """Return the alphabet of all characters of the texts, sorted by code point."""
        return cls("".join(sorted(set().union(*texts))))

    def __len__(self) -> int:
        """Number of outputs of a model: characters plus blank."""
        return len(self.characters) + 1

    def encode(self, text: str) -> list[int]:
        """Return the index of each character.

        Raises:
            ValueError: if characters are not in the alphabet. The message names them.
        """
        unknown = sorted(set(text) - self._indices.keys())
        if unknown:
            raise ValueError(
                f"characters {unknown} are not in the alphabet; normalise the text, leave it out "
                "or use an alphabet that has them (Alphabet.of_texts)"
            )
        return [self._indices[character] for character in text]

    def decode(self, indices: Sequence[int]) -> str:
        """Return the text of indices. Blanks, which also pad targets, are skipped.

        Raises:
            ValueError: if an index is out of range.
        """
        wrong = sorted({index for index in indices if not 0 <= index < len(self)})
        if wrong:
            raise ValueError(f"indices must be from 0 to {len(self) - 1}, got {wrong}")
        return "".join(self.characters[index - 1] for index in indices if index != BLANK)

    def normalise(self, text: str) -> str:
        """Return the text with characters outside the alphabet replaced, if possible.

        White space becomes a single space. Typographic quotes become straight quotes, dashes become
        hyphens, ligatures two letters, and fractions "1/2". Accents are removed. Characters without
        a replacement are not changed, so that :meth:`encode` names them in its error.
        """
        composed = unicodedata.normalize("NFC", " ".join(text.split()))
        normalised = "".join(self._replacement(character) for character in composed)
        return " ".join(normalised.split())

    def _replacement(self, character: str) -> str:
        if character in self._indices:
            return character
        decomposed = unicodedata.normalize("NFKD", character)
        plain = "".join(
            _ON_KEYBOARD.get(part, part) for part in decomposed if not unicodedata.combining(part)
        )
        # Without a space, "21½" would become "211/2".
        plain = f" {plain}" if _FRACTION_SLASH in decomposed and len(decomposed) > 1 else plain
        return plain if plain and set(plain) <= self._indices.keys() else character
