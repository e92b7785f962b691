"""Pronunciation lexicon, and senones: the states of its phones, which the model classifies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SILENCE = "sil"

_VARIANT = re.compile(r"^(?P<word>.+)\((?P<number>\d+)\)$")


@dataclass(frozen=True)
class SenoneMap:
    """Numbering of the states of phones: ``id = phone_index * states_per_phone + state``.

    Attributes:
        phones: names of the phones. The first one is silence (``"sil"``).
        states_per_phone: number of states of each phone.
    """

    phones: tuple[str, ...]
    states_per_phone: int = 3

    @classmethod
    def from_phones(cls, phones: Iterable[str]) -> SenoneMap:
        """Create a numbering with silence first and the other phones in alphabetical order."""
        return cls((SILENCE, *sorted(set(phones) - {SILENCE})))

    def __len__(self) -> int:
        """Return the number of senones."""
        return len(self.phones) * self.states_per_phone

    def of(self, phone: str) -> tuple[int, ...]:
        """Return the senones of a phone, in the order of its states."""
        first = self.phones.index(phone) * self.states_per_phone
        return tuple(range(first, first + self.states_per_phone))


class Lexicon:
    """Words with one or more pronunciations each, as in the CMU dictionary.

    Words and variants keep the order of the input, so that graphs and symbol numbers are the same
    on every rank.
    """

    def __init__(self, entries: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._entries = {
            word: list(dict.fromkeys(tuple(variant) for variant in variants))
            for word, variants in entries.items()
        }

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
                raise ValueError(f"{path}:{number}: word {fields[0]!r} has no phones")
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
        every = (phone for variants in self._entries.values() for v in variants for phone in v)
        return tuple(sorted(set(every)))

    def pronunciations(self, word: str) -> list[tuple[str, ...]]:
        """Return the variants of a word, in order."""
        return self._entries[word]

    def check_words(self, words: Iterable[str]) -> None:
        """Raise a KeyError that lists all words without pronunciation, if there are any."""
        unknown = sorted(set(words) - set(self._entries))
        if unknown:
            raise KeyError(
                f"{len(unknown)} word(s) without pronunciation: {', '.join(unknown)}; add them to "
                f"the lexicon ({len(self._entries)} words) or leave out their utterances"
            )
