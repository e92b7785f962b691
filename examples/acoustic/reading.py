"""How a transcript is spoken: which pronunciation of each word, and where silence stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import NamedTuple

from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SILENCE, SenoneMap


class Transcript(NamedTuple):
    """What is known of an utterance before alignment: name, words, number of frames."""

    key: str
    words: tuple[str, ...]
    frames: int


@dataclass(frozen=True)
class Reading:
    """How the words are taken to be spoken.

    Attributes:
        variants: per word, which of its pronunciations.
        pauses: silence before the first word and after each word, so one more than words.
    """

    variants: tuple[int, ...]
    pauses: tuple[bool, ...]

    @classmethod
    def plain(cls, words: int, *, silence: bool) -> Reading:
        """First pronunciations; silence at both ends or nowhere."""
        pauses = (silence, *(False,) * (words - 1), silence) if words else ()
        return cls((0,) * words, pauses)

    def states(self, words: Sequence[str], lexicon: Lexicon, senones: SenoneMap) -> list[int]:
        """Return the senones in the order in which they are passed through."""
        phones = [SILENCE] if self.pauses and self.pauses[0] else []
        for word, variant, pause in zip(words, self.variants, self.pauses[1:], strict=True):
            phones += lexicon.pronunciations(word)[variant]
            phones += [SILENCE] if pause else []
        return [senone for phone in phones for senone in senones.of(phone)]

    def with_pause_toggled(self, position: int) -> Reading:
        """Return the reading with silence put in or taken out at this position."""
        pauses = list(self.pauses)
        pauses[position] = not pauses[position]
        return Reading(self.variants, tuple(pauses))

    def with_variant(self, position: int, variant: int) -> Reading:
        """Return the reading with another pronunciation of the word at this position."""
        variants = list(self.variants)
        variants[position] = variant
        return Reading(tuple(variants), self.pauses)


def changes(words: Sequence[str], lexicon: Lexicon) -> Iterator[Callable[[Reading], Reading]]:
    """Yield every single change: each pause the other way, each pronunciation of each word."""
    for position in range(len(words) + 1):
        yield methodcaller("with_pause_toggled", position)
    for position, word in enumerate(words):
        variants = len(lexicon.pronunciations(word))
        for variant in range(variants if variants > 1 else 0):
            yield methodcaller("with_variant", position, variant)


def first_reading(transcript: Transcript, lexicon: Lexicon, senones: SenoneMap) -> Reading | None:
    """Return the plain reading that fits into the frames, with silence if possible."""
    for silence in (True, False):
        reading = Reading.plain(len(transcript.words), silence=silence)
        states = reading.states(transcript.words, lexicon, senones)
        if 0 < len(states) <= transcript.frames:
            return reading
    return None


def why_unaligned(transcript: Transcript, lexicon: Lexicon, senones: SenoneMap) -> str:
    """Say why an utterance cannot be aligned."""
    if not transcript.words:
        return "no words"
    reading = Reading.plain(len(transcript.words), silence=False)
    states = len(reading.states(transcript.words, lexicon, senones))
    return f"{transcript.frames} frames for {states} states"
