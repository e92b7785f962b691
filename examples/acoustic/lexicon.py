"""Pronunciation lexicon: words, their pronunciation variants and the phones they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_VARIANT = re.compile(r"^(?P<word>.+)\((?P<number>\d+)\)$")


class Lexicon:
    """Words with one or more pronunciations each, in the manner of the CMU dictionary.

    The order of words and of variants is the order in which they were given, so that everything
    built from a lexicon (graphs, symbol numbers) is the same on every rank.
    """

    def __init__(self, entries: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """Take pronunciations per word; see ``from_dict`` and ``from_file``.

        Raises:
            ValueError: no words, a word without pronunciation, or an empty pronunciation.
        """
        if not entries:
            raise ValueError("a lexicon needs at least one word, got none")
        self._entries: dict[str, list[tuple[str, ...]]] = {}
        for word, variants in entries.items():
            unique = list(dict.fromkeys(tuple(variant) for variant in variants))
            if not unique or not all(unique):
                raise ValueError(
                    f"word {word!r} needs pronunciations of at least one phone each, got "
                    f"{unique}; leave the word out or give its phones"
                )
            self._entries[word] = unique

    @classmethod
    def from_dict(cls, entries: Mapping[str, Sequence[str] | Sequence[Sequence[str]]]) -> Lexicon:
        """Build from ``{word: [phones, ...]}`` or ``{word: phones}``; a string is split at spaces.

        ``{"A": ["AH", "EY"]}`` therefore means two variants of one phone each, as
        ``{"A": [("AH",), ("EY",)]}`` does; ``{"AND": "AE N D"}`` is one variant of three phones.
        """
        return cls({word: _variants(given) for word, given in entries.items()})

    @classmethod
    def from_file(cls, path: str | Path) -> Lexicon:
        """Read lines ``WORD  P1 P2 ...``; a variant is its own line, ``WORD(2)  P1 P2 ...``.

        Empty lines and lines that start with ``;;;`` are skipped.

        Raises:
            ValueError: a line with a word and no phones, with the line's number.
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
        """All phones of all pronunciations, sorted, without silence (no word contains it)."""
        found = {phone for variants in self._entries.values() for v in variants for phone in v}
        return tuple(sorted(found))

    def __len__(self) -> int:
        """Return the number of words (not of variants)."""
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
        """Return the variants of a word, the first one first.

        Raises:
            KeyError: the word is unknown; ``check_words`` names all unknown words at once.
        """
        self.check_words([word])
        return list(self._entries[word])

    def check_words(self, words: Iterable[str]) -> None:
        """Raise one KeyError that lists every word that has no pronunciation."""
        unknown = sorted(set(words) - set(self._entries))
        if unknown:
            raise KeyError(
                f"{len(unknown)} word(s) without pronunciation: {', '.join(unknown)}; add them to "
                f"the lexicon ({len(self)} words) or leave out the utterances that contain them"
            )

    def restricted_to(self, words: Iterable[str]) -> Lexicon:
        """Return the lexicon of these words alone, in this lexicon's order."""
        wanted = set(words)
        self.check_words(wanted)
        return Lexicon({word: v for word, v in self._entries.items() if word in wanted})


def _variants(given: Sequence[str] | Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Read one value of ``Lexicon.from_dict``."""
    if isinstance(given, str):
        return [tuple(given.split())]
    return [tuple(v.split()) if isinstance(v, str) else tuple(v) for v in given]
