"""The characters that a model can write, and their numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

KEYBOARD = "".join(chr(code) for code in range(32, 127))
"""The 95 printable characters of ASCII, as in bmuf_adam 3.1."""

BLANK = 0
"""Number of CTC's blank."""

# What Unicode's own decompositions do not lead to the keyboard.
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
    """Characters in the order of their numbers; the blank is 0, the first character 1.

    Args:
        characters: each once, the blank not among them; the keyboard's 95 by default.

    Raises:
        ValueError: if there are none, or one stands twice.
    """

    characters: str = KEYBOARD
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Number the characters."""
        numbers = {character: number for number, character in enumerate(self.characters, 1)}
        if not numbers or len(numbers) != len(self.characters):
            raise ValueError(
                f"characters must be at least one and each different, got {self.characters!r}"
            )
        object.__setattr__(self, "_numbers", numbers)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Alphabet:
        """Return the alphabet of all characters in the texts, in the order of their code points."""
        return cls("".join(sorted(set().union(*texts))))

    def __len__(self) -> int:
        """Number of the model's outputs: characters and blank."""
        return len(self.characters) + 1

    def encode(self, text: str) -> list[int]:
        """Return the number of each character.

        Raises:
            ValueError: if characters are not in the alphabet; it names them.
        """
        foreign = sorted(set(text) - self._numbers.keys())
        if foreign:
            raise ValueError(
                f"characters {foreign} are not in the alphabet; normalise the text, leave it out "
                "or use an alphabet that has them (Alphabet.of_texts)"
            )
        return [self._numbers[character] for character in text]

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the text; blanks, which also pad targets, are skipped.

        Raises:
            ValueError: if a number is none of the alphabet.
        """
        wrong = sorted({number for number in numbers if not 0 <= number < len(self)})
        if wrong:
            raise ValueError(f"numbers must be from 0 to {len(self) - 1}, got {wrong}")
        return "".join(self.characters[number - 1] for number in numbers if number != BLANK)

    def normalise(self, text: str) -> str:
        """Return the text with the alphabet's characters, as far as it can be written with them.

        Runs of white space become one space. A character outside the alphabet becomes what stands
        for it on a keyboard: straight quotes for typographic ones, a hyphen for a dash, two letters
        for a ligature, "1/2" for the fraction, the letter without its accent. What cannot be
        written in that way is left, so that ``encode`` names it.
        """
        composed = unicodedata.normalize("NFC", " ".join(text.split()))
        written = "".join(self._written(character) for character in composed)
        return " ".join(written.split())

    def _written(self, character: str) -> str:
        if character in self._numbers:
            return character
        decomposed = unicodedata.normalize("NFKD", character)
        plain = "".join(
            _ON_KEYBOARD.get(part, part) for part in decomposed if not unicodedata.combining(part)
        )
        # "21½" would read 211/2.
        plain = f" {plain}" if _FRACTION_SLASH in decomposed and len(decomposed) > 1 else plain
        return plain if plain and set(plain) <= self._numbers.keys() else character
