"""Random texts in the style of English prose, letters and bills, generated from patterns."""

from __future__ import annotations

import re

import numpy as np

# A placeholder {name} is replaced by a word of the list of that name. Wording._fill_in handles the
# other placeholders.
WORDS = {
    "adjective": "old new small great quiet broken yellow empty heavy narrow bright wooden early "
    "foreign careful honest distant gentle rapid useful simple strange warm grey silver northern",
    "noun": "house river garden letter captain window market engine village station bridge "
    "picture teacher winter journey kitchen harbour question machine forest doctor mountain "
    "library evening company history valley blanket lantern orchard judge quarry zebra",
    "nouns": "boxes pages apples tickets lamps chairs pounds copies sheets bottles horses keys "
    "maps coins boards jars wheels books",
    "past": "opened followed watched carried crossed painted measured closed found left kept "
    "described visited built sold repaired examined joined",
    "present": "opens follows watches carries crosses paints measures closes finds leaves keeps "
    "describes visits builds sells examines joins",
    "verb": "open follow watch carry cross paint measure close find leave keep describe visit "
    "build sell repair examine join",
    "place": "behind near under across from beside over beyond through toward inside around",
    "adverb": "slowly again once never always quickly together alone later perhaps quite soon",
    "joiner": "and but because while until before although when so",
    "name": "Anna Victor Judith Oliver Quentin Martha Felix Irene Walter Zoe Henry Xavier Clara "
    "Edward Nora George Laura Peter Una Kate Daniel Rose Samuel Yvonne Brook Lane Hill Ford",
    "title": "Mr. Mrs. Dr. Miss Captain",
    "month": "January February March April May June July August September October November "
    "December",
    "domain": "org com net",
}
_HEADLINES = 0.05  # fraction of lines in upper case
_LISTS = {name: words.split() for name, words in WORDS.items()}

SENTENCES = (
    "The {adjective} {noun} {present} the {noun} {place} the {noun}.",
    "The {noun} {past} a {adjective} {noun}, {joiner} {name} {past} the {noun} {adverb}.",
    "{title} {name} {past} {count} {nouns} {place} the {adjective} {noun}.",
    "We {past} the {noun} {adverb} {joiner} they {past} the {adjective} {noun}.",
    "It was {adverb} the {adjective} {noun} that {name} {past}.",
    '"Did you {verb} the {noun}?" {title} {name} asked {adverb}.',
    '"{name} will {verb} it!" said {name}; "the {noun} is {adjective}."',
    "On {day} {month} {year} {name} {past} the {noun}'s {adjective} {noun}.",
    "In {year} there were {count} {nouns} in the {noun}, {count} of them {adjective}.",
    "She didn't {verb} the {noun} - it was {adjective}, {adjective} and {adjective}.",
    "Who {past} the {noun} {place} {name}'s {noun}?",
    "{count} {nouns} at ${price} each: ${price} ({percent}% off).",
    "No. {count}: {noun} & {noun}, {count} {nouns}, ${price}",
)
RARE_SENTENCES = (
    "Write to {lower}@{noun}.{domain} (#{count}).",
    "{count} + {count} = {count}; {count} * {day} > {day}/{day}",
    "[{day}] see {noun}_{noun}.txt or C:\\{noun}\\{noun}",
    "if {noun} < {count} | {noun} > {day}: {{ `{verb}` }}",
    "~/{noun}/{noun} ^ {count} ~ {percent}%",
)


class Wording:
    """Generates random lines of text.

    Args:
        generator: random generator. The texts depend only on it and the other arguments.
        max_characters: maximum number of characters of a line, at least 16.
        rare_fraction: fraction of lines with rare characters of the keyboard.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self, generator: np.random.Generator, max_characters: int = 32, rare_fraction: float = 0.1
    ) -> None:
        if max_characters < 16:
            raise ValueError(f"max_characters must be at least 16, got {max_characters}")
        if not 0 <= rare_fraction <= 1:
            raise ValueError(f"rare_fraction must be from 0 to 1, got {rare_fraction}")
        self.generator = generator
        self.max_characters = max_characters
        self.rare_fraction = rare_fraction

    def line(self) -> str:
        """Return a line of whole words that may begin within a sentence, as on a page."""
        if self.generator.random() < self.rare_fraction:
            words = self._sentence(RARE_SENTENCES).split()
            return self._join(words[self._integer(0, len(words)) :])
        words = f"{self._sentence(SENTENCES)} {self._sentence(SENTENCES)}".split()
        line = self._join(words[self._integer(0, len(words) // 2) :])
        return line.upper() if self.generator.random() < _HEADLINES else line

    def _join(self, words: list[str]) -> str:
        """Join as many words as fit in a random number of characters."""
        limit = int(self.generator.integers(self.max_characters // 2, self.max_characters + 1))
        line = words[0]
        for word in words[1:]:
            if len(line) + 1 + len(word) > limit:
                break
            line = f"{line} {word}"
        return line[:limit]

    def _sentence(self, patterns: tuple[str, ...]) -> str:
        pattern = patterns[int(self.generator.integers(len(patterns)))]
        filled = re.sub(r"(?<!\{)\{(\w+)\}(?!\})", lambda match: self._fill_in(match[1]), pattern)
        return filled.replace("{{", "{").replace("}}", "}")

    def _fill_in(self, name: str) -> str:
        """Return a random value for a placeholder."""
        if name in _LISTS:
            return self._word(name)
        if name == "lower":
            return self._word("name").lower()
        if name == "price":
            return f"{self._integer(1, 2000):,}.{self._integer(0, 100):02d}"
        low, high = {
            "count": (2, 1000),
            "day": (1, 32),
            "year": (1790, 2030),
            "percent": (1, 100),
        }[name]
        return str(self._integer(low, high))

    def _word(self, name: str) -> str:
        words = _LISTS[name]
        return words[self._integer(0, len(words))]

    def _integer(self, low: int, high: int) -> int:
        """Return a random integer from ``low`` to ``high`` - 1."""
        return int(self.generator.integers(low, high))
