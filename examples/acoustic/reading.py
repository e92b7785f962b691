"""Reading of a transcript: the pronunciation of each word, and the pauses between words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import NamedTuple

from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SILENCE, SenoneMap


class Transcript(NamedTuple):
    """Key, words and number of frames of an utterance that is to be aligned."""

    key: str
    words: tuple[str, ...]
    frames: int


@dataclass(frozen=True)
class Reading:
    """Pronunciations and pauses of an utterance.

    Attributes:
        variants: index of the pronunciation of each word.
        pauses: whether there is silence before the first word, and after each word.
    """

    variants: tuple[int, ...]
    pauses: tuple[bool, ...]

    @classmethod
    def plain(cls, words: int, *, silence: bool) -> Reading:
        """Return a reading with first pronunciations, and silence at both ends or nowhere."""
        pauses = (silence, *(False,) * (words - 1), silence) if words else ()
        return cls((0,) * words, pauses)

    def states(self, words: Sequence[str], lexicon: Lexicon, senones: SenoneMap) -> list[int]:
        """Return the senones of the reading, in order."""
        phones = [SILENCE] if self.pauses and self.pauses[0] else []
        for word, variant, pause in zip(words, self.variants, self.pauses[1:], strict=True):
            phones += lexicon.pronunciations(word)[variant]
            phones += [SILENCE] if pause else []
        return [senone for phone in phones for senone in senones.of(phone)]

    def with_pause_toggled(self, position: int) -> Reading:
        """Return the reading with a pause added or removed at this position."""
        pauses = list(self.pauses)
        pauses[position] = not pauses[position]
        return Reading(self.variants, tuple(pauses))

    def with_variant(self, position: int, variant: int) -> Reading:
        """Return the reading with this pronunciation of the word at this position."""
        variants = list(self.variants)
        variants[position] = variant
        return Reading(tuple(variants), self.pauses)


def changes(words: Sequence[str], lexicon: Lexicon) -> Iterator[Callable[[Reading], Reading]]:
    """Yield every change of one pause or one pronunciation, as a function of a reading."""
    for position in range(len(words) + 1):
        yield methodcaller("with_pause_toggled", position)
    for position, word in enumerate(words):
        variants = len(lexicon.pronunciations(word))
        for variant in range(variants if variants > 1 else 0):
            yield methodcaller("with_variant", position, variant)


def first_reading(transcript: Transcript, lexicon: Lexicon, senones: SenoneMap) -> Reading | None:
    """Return the plain reading that fits into the frames, with silence if possible, or None."""
    for silence in (True, False):
        reading = Reading.plain(len(transcript.words), silence=silence)
        states = reading.states(transcript.words, lexicon, senones)
        if 0 < len(states) <= transcript.frames:
            return reading
    return None


def why_unaligned(transcript: Transcript, lexicon: Lexicon, senones: SenoneMap) -> str:
    """Return the reason why an utterance cannot be aligned."""
    if not transcript.words:
        return "no words"
    reading = Reading.plain(len(transcript.words), silence=False)
    states = len(reading.states(transcript.words, lexicon, senones))
    return f"{transcript.frames} frames for {states} states"
