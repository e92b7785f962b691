"""Pronunciation lexicon."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_VARIANT = re.compile(r"^(?P<word>.+)\((?P<number>\d+)\)$")


class Lexicon:
    """Words with one or more pronunciations each, as in the CMU dictionary.

    Words and variants keep the order of the input, so that graphs and symbol numbers are the same
    on every rank.
    """

    def __init__(self, entries: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """Create a lexicon from the pronunciations of each word.

        See also :meth:`from_dict` and :meth:`from_file`.

        Raises:
            ValueError: there are no words, a word has no pronunciation, or one is empty.
        """
        if not entries:
            raise ValueError("a lexicon needs at least one word, got none")
        self._entries: dict[str, list[tuple[str, ...]]] = {}
        for word, variants in entries.items():
            unique = list(dict.fromkeys(tuple(variant) for variant in variants))
            if not unique or not all(unique):
                raise ValueError(
                    f"word {word!r} needs pronunciations of at least one phone each, got "
                    f"{unique}; remove the word or add its phones"
                )
            self._entries[word] = unique

    @classmethod
    def from_dict(cls, entries: Mapping[str, Sequence[str] | Sequence[Sequence[str]]]) -> Lexicon:
        """Create a lexicon from ``{word: [phones, ...]}`` or ``{word: phones}``.

        Strings are split at spaces. ``{"A": ["AH", "EY"]}`` has two variants of one phone each, as
        ``{"A": [("AH",), ("EY",)]}``. ``{"AND": "AE N D"}`` has one variant of three phones.
        """
        return cls({word: _variants(value) for word, value in entries.items()})

    @classmethod
    def from_file(cls, path: str | Path) -> Lexicon:
        """Read a lexicon with lines ``WORD  P1 P2 ...``, and variants ``WORD(2)  P1 P2 ...``.

        Empty lines and lines that start with ``;;;`` are skipped.

        Raises:
            ValueError: a line has a word and no phones.
        """
        entries: dict[str, list[tuple[str, ...]]] = {}
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            fields = line.split()
            if not fields or line.startswith(";;;"):
                continue
            if len(fields) == 1:
                raise ValueError(
                    f"{path}:{number}: word {fields[0]!r} has no phones; a line gives the word and "
                    "then its phones"
                )
            variant = _VARIANT.match(fields[0])
            word = variant["word"] if variant else fields[0]
            entries.setdefault(word, []).append(tuple(fields[1:]))
        return cls(entries)

    @property
    def words(self) -> tuple[str, ...]:
        """All words, in order."""
        return tuple(self._entries)

    @property
    def phones(self) -> tuple[str, ...]:
        """All phones of all pronunciations, sorted. No word contains silence."""
        phones = {phone for variants in self._entries.values() for v in variants for phone in v}
        return tuple(sorted(phones))

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self._entries)

    def __contains__(self, word: object) -> bool:
        """Return whether the word has a pronunciation."""
        return word in self._entries

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same words and variants in the same order."""
        return isinstance(other, Lexicon) and list(self._entries.items()) == list(
            other._entries.items()
        )

    def __hash__(self) -> int:
        """Hash by the words."""
        return hash(self.words)

    def pronunciations(self, word: str) -> list[tuple[str, ...]]:
        """Return the variants of a word, in order.

        Raises:
            KeyError: the word is unknown.
        """
        self.check_words([word])
        return list(self._entries[word])

    def check_words(self, words: Iterable[str]) -> None:
        """Raise a KeyError that lists all words without pronunciation, if there are any."""
        unknown = sorted(set(words) - set(self._entries))
        if unknown:
            raise KeyError(
                f"{len(unknown)} word(s) without pronunciation: {', '.join(unknown)}; add them to "
                f"the lexicon ({len(self)} words) or leave out the utterances that contain them"
            )

    def restricted_to(self, words: Iterable[str]) -> Lexicon:
        """Return a lexicon of these words only, in the order of this lexicon."""
        selected = set(words)
        self.check_words(selected)
        return Lexicon({word: v for word, v in self._entries.items() if word in selected})


def _variants(value: Sequence[str] | Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the variants in a value of ``Lexicon.from_dict``."""
    if isinstance(value, str):
        return [tuple(value.split())]
    return [tuple(v.split()) if isinstance(v, str) else tuple(v) for v in value]
