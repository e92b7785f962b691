"""Alignment of transcribed utterances: the senone of each frame.

Hybrid training from a flat start divides each utterance evenly among its states, trains a model on
these targets, aligns the utterances with it, and repeats this. Alignments are at the frame rate of
the recording (100 frames/s), because at a third of it short phones have fewer frames than states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import NamedTuple

import torch
from torch import Tensor
from torchaudio.functional import forced_align

from examples.acoustic.lexicon import SILENCE, Lexicon, SenoneMap

# Log probability of the blank of CTC, which an HMM does not have. It is far below all scores.
_IMPOSSIBLE = -1e9
# Frames of silence at each end of an utterance in the flat start, at most a quarter of it.
_SILENCE_FRAMES = 20
# Number of times that each change of a pause or a pronunciation is tried.
_PASSES = 2


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


@dataclass(frozen=True)
class Alignment:
    """Alignment of an utterance.

    Attributes:
        senones: (T,) int64, senone of each frame.
        log_likelihood: mean log likelihood of a frame, NaN in the flat start.
        reading: pronunciations and pauses.
    """

    senones: Tensor
    log_likelihood: float
    reading: Reading


@dataclass(frozen=True)
class Alignments:
    """Alignments by key, and the keys of the utterances that are too short for their words."""

    by_key: Mapping[str, Alignment]
    left_out: Sequence[str]

    def senones(self) -> dict[str, Tensor]:
        """Return the senones of each aligned utterance, by key."""
        return {key: alignment.senones for key, alignment in self.by_key.items()}

    def summary(self) -> str:
        """Return the number of aligned utterances, and the first ones that are not, as text."""
        frames = sum(len(each.senones) for each in self.by_key.values())
        total = sum(each.log_likelihood * len(each.senones) for each in self.by_key.values())
        text = (
            f"{len(self.by_key)} of {len(self.by_key) + len(self.left_out)} utterances aligned, "
            f"{total / max(frames, 1):.3f} per frame"
        )
        return text if not self.left_out else f"{text}; too short: {', '.join(self.left_out[:3])}"


class Aligner:
    """Aligns utterances with the states of their words.

    Args:
        lexicon: pronunciations of all words.
        senones: numbering of the senones of the model.
    """

    def __init__(self, lexicon: Lexicon, senones: SenoneMap) -> None:
        self._lexicon = lexicon
        self._senones = senones

    def flat(self, transcripts: Sequence[Transcript]) -> Alignments:
        """Divide the frames of each utterance evenly among silence, its words, and silence."""

        def align(transcript: Transcript, reading: Reading) -> Alignment:
            words = Reading.plain(len(transcript.words), silence=False)
            return Alignment(
                self._uniform(self._states(transcript, words), transcript.frames),
                float("nan"),
                reading,
            )

        return self._each(transcripts, align)

    def by_scores(
        self,
        transcripts: Sequence[Transcript],
        score: Callable[[str], Tensor],
        previous: Alignments | None = None,
    ) -> Alignments:
        """Align every utterance, with the pauses and pronunciations of the highest score.

        Args:
            transcripts: utterances to align.
            score: function that returns the log likelihoods (frames, S) of the utterance with this
                key, as of ``priors.scaled_likelihoods``.
            previous: alignments with the initial readings of the search.

        """

        def align(transcript: Transcript, reading: Reading) -> Alignment:
            if previous is not None:
                reading = previous.by_key[transcript.key].reading
            return self._search(score(transcript.key), transcript, reading)

        return self._each(transcripts, align)

    def _each(
        self,
        transcripts: Sequence[Transcript],
        align: Callable[[Transcript, Reading], Alignment],
    ) -> Alignments:
        aligned: dict[str, Alignment] = {}
        left_out: list[str] = []
        for transcript in transcripts:
            reading = self._first_reading(transcript)
            if reading is None:
                left_out.append(transcript.key)
            else:
                aligned[transcript.key] = align(transcript, reading)
        return Alignments(aligned, left_out)

    def _first_reading(self, transcript: Transcript) -> Reading | None:
        """Return the plain reading that fits the frames, with silence if possible, or None."""
        for silence in (True, False):
            reading = Reading.plain(len(transcript.words), silence=silence)
            if 0 < len(self._states(transcript, reading)) <= transcript.frames:
                return reading
        return None

    def _states(self, transcript: Transcript, reading: Reading) -> list[int]:
        return reading.states(transcript.words, self._lexicon, self._senones)

    def _uniform(self, of_words: Sequence[int], frames: int) -> Tensor:
        """Return senones (frames,), divided evenly among states, with silence at both ends."""
        silence = min(_SILENCE_FRAMES, frames // 4)
        states, speech = torch.tensor(of_words), frames - 2 * silence
        middle = states[torch.arange(speech) * len(states) // speech]
        of_silence = torch.tensor(self._senones.of(SILENCE))
        end = of_silence[torch.arange(silence) * len(of_silence) // max(silence, 1)]
        return torch.cat([end, middle, end])

    def _search(self, scores: Tensor, transcript: Transcript, reading: Reading) -> Alignment:
        """Keep each change of the reading that increases the score of the best path."""
        path, best = viterbi(scores, self._states(transcript, reading))
        for _ in range(_PASSES):
            before = reading
            for change in self._changes(transcript.words):
                candidate = change(reading)
                states = self._states(transcript, candidate)
                if candidate == reading or len(states) > len(scores):
                    continue
                candidate_path, total = viterbi(scores, states)
                if total > best:
                    path, best, reading = candidate_path, total, candidate
            if reading == before:
                break
        return Alignment(path, best / len(scores), reading)

    def _changes(self, words: Sequence[str]) -> Iterator[Callable[[Reading], Reading]]:
        """Yield every change of one pause or one pronunciation, as a function of a reading."""
        for position in range(len(words) + 1):
            yield methodcaller("with_pause_toggled", position)
        for position, word in enumerate(words):
            variants = len(self._lexicon.pronunciations(word))
            for variant in range(variants if variants > 1 else 0):
                yield methodcaller("with_variant", position, variant)


def viterbi(log_likelihoods: Tensor, states: Sequence[int]) -> tuple[Tensor, float]:
    """Return the best path through a sequence of states, all of which have at least one frame.

    Transitions have no cost. The path is the forced alignment of CTC with an impossible blank.

    Args:
        log_likelihoods: (T, S) finite log likelihoods.
        states: senones in order, at most T. Adjacent ones must differ, because CTC needs a blank
            between equal labels.

    Returns:
        Senones (T,) int64 of the path, and the sum of their log likelihoods.
    """
    scores = log_likelihoods.detach().float().cpu()
    blank = torch.full((len(scores), 1), _IMPOSSIBLE)
    emission = torch.cat([scores, blank], dim=1).unsqueeze(0).contiguous()
    targets = torch.tensor([states], dtype=torch.int32)
    path, path_scores = forced_align(emission, targets, blank=scores.shape[1])
    return path[0].long(), float(path_scores[0].double().sum())
