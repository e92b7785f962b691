"""Alignment of transcribed utterances: the senone of each frame.

Hybrid training from a flat start divides each utterance evenly among its states, trains a model on
these targets, aligns the utterances with it, and repeats this. Alignments are at the frame rate of
the recording (100 frames/s), because at a third of it short phones have fewer frames than states.
Models at a lower frame rate compute scores at each phase, which ``Stacking.interleave`` merges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchaudio.functional import forced_align

from examples.acoustic.lexicon import Lexicon
from examples.acoustic.reading import Reading, Transcript, changes, first_reading, why_unaligned
from examples.acoustic.segmentation import uniform_segmentation
from examples.acoustic.senones import SenoneMap

# Log probability of the blank of CTC, which an HMM does not have. It is far below all scores.
_IMPOSSIBLE = -1e9


@dataclass(frozen=True)
class Alignment:
    """Alignment of an utterance.

    Attributes:
        senones: (T,) int64, senone of each frame.
        log_likelihood: mean log likelihood of a frame.
        reading: pronunciations and pauses.
    """

    senones: Tensor
    log_likelihood: float
    reading: Reading


@dataclass(frozen=True)
class Alignments:
    """Alignments of several utterances.

    Attributes:
        by_key: alignment of each aligned utterance.
        left_out: reason for each utterance that could not be aligned.
    """

    by_key: Mapping[str, Alignment]
    left_out: Mapping[str, str]

    @property
    def log_likelihood(self) -> float:
        """Mean log likelihood of a frame, over all utterances. Realignment should increase it."""
        frames = sum(len(a.senones) for a in self.by_key.values())
        total = sum(a.log_likelihood * len(a.senones) for a in self.by_key.values())
        return total / frames if frames else float("nan")

    def senones(self) -> dict[str, Tensor]:
        """Return the senones of each aligned utterance, by key."""
        return {key: alignment.senones for key, alignment in self.by_key.items()}

    def summary(self) -> str:
        """Return the number of aligned utterances, and the first ones that are not, as text."""
        aligned, missing = len(self.by_key), len(self.left_out)
        total = aligned + missing
        text = f"{aligned} of {total} utterances aligned, {self.log_likelihood:.3f} per frame"
        if not missing:
            return text
        first = "; ".join(f"{key}: {reason}" for key, reason in list(self.left_out.items())[:3])
        return f"{text}; {missing} left out ({first}{'; ...' if missing > 3 else ''})"


def viterbi(log_likelihoods: Tensor, states: Sequence[int]) -> tuple[Tensor, float]:
    """Return the best path through a sequence of states, all of which have at least one frame.

    Transitions have no cost. The path is the forced alignment of CTC with an impossible blank.

    Args:
        log_likelihoods: (T, S) finite log likelihoods.
        states: senones in order. Adjacent ones must differ, because CTC needs a blank between equal
            labels.

    Returns:
        Senones (T,) int64 of the path, and the sum of their log likelihoods.

    Raises:
        ValueError: there are no states, more states than frames, or equal adjacent states.
    """
    frames = log_likelihoods.shape[0]
    if not 0 < len(states) <= frames:
        raise ValueError(f"{len(states)} states need as many frames and at least one, got {frames}")
    equal = [a for a, b in zip(states[:-1], states[1:], strict=True) if a == b]
    if equal:
        raise ValueError(
            f"adjacent states must differ, got senone {equal[0]} twice in a row; use at least two "
            "states per phone"
        )
    scores = log_likelihoods.detach().float().cpu()
    blank = torch.full((frames, 1), _IMPOSSIBLE)
    emission = torch.cat([scores, blank], dim=1).unsqueeze(0).contiguous()
    targets = torch.tensor([states], dtype=torch.int32)
    path, path_scores = forced_align(emission, targets, blank=scores.shape[1])
    return path[0].long(), float(path_scores[0].double().sum())


def flat_start(
    transcripts: Sequence[Transcript],
    lexicon: Lexicon,
    senones: SenoneMap,
    *,
    silence_frames: int = 15,
) -> Alignments:
    """Divide the frames of each utterance evenly among silence, its words, and silence.

    Log likelihoods are NaN, because there are no scores.

    Args:
        transcripts: utterances to align.
        lexicon: pronunciations of all words, of which the first variants are used.
        senones: numbering of the senones.
        silence_frames: argument of ``segmentation.uniform_segmentation``.

    Raises:
        KeyError: words have no pronunciation. The error lists all of them.
    """
    _check_words(transcripts, lexicon)
    aligned: dict[str, Alignment] = {}
    left_out: dict[str, str] = {}
    for transcript in transcripts:
        reading = first_reading(transcript, lexicon, senones)
        if reading is None:
            left_out[transcript.key] = why_unaligned(transcript, lexicon, senones)
            continue
        targets = uniform_segmentation(
            transcript.words, lexicon, senones, transcript.frames, silence_frames
        )
        aligned[transcript.key] = Alignment(targets, float("nan"), reading)
    return Alignments(aligned, left_out)


def realign(
    transcripts: Sequence[Transcript],
    score: Callable[[str], Tensor],
    lexicon: Lexicon,
    senones: SenoneMap,
    *,
    previous: Alignments | None = None,
    passes: int = 2,
) -> Alignments:
    """Align every utterance, with the pauses and pronunciations of the highest score.

    Args:
        transcripts: utterances to align.
        score: function that returns the log likelihoods (frames, S) of the utterance with this
            key, for example from ``decoding.scaled_likelihoods``.
        lexicon: pronunciations of all words.
        senones: numbering of the senones of the model.
        previous: alignments with the initial readings of the search.
        passes: number of times that each change of a pause or a pronunciation is tried.

    Raises:
        KeyError: words have no pronunciation. The error lists all of them.
        ValueError: scores are not finite, or their shape is not (frames, S).
    """
    _check_words(transcripts, lexicon)
    aligned: dict[str, Alignment] = {}
    left_out: dict[str, str] = {}
    for transcript in transcripts:
        initial = previous.by_key.get(transcript.key) if previous else None
        reading = initial.reading if initial else first_reading(transcript, lexicon, senones)
        if reading is None:
            left_out[transcript.key] = why_unaligned(transcript, lexicon, senones)
            continue
        scores = score(transcript.key)
        _check_scores(scores, transcript, senones)
        aligned[transcript.key] = _search(
            scores, transcript.words, reading, lexicon, senones, passes
        )
    return Alignments(aligned, left_out)


def _search(
    scores: Tensor,
    words: Sequence[str],
    reading: Reading,
    lexicon: Lexicon,
    senones: SenoneMap,
    passes: int,
) -> Alignment:
    """Keep each change of the reading that increases the score of the best path."""
    path, best = viterbi(scores, reading.states(words, lexicon, senones))
    for _ in range(passes):
        before = reading
        for change in changes(words, lexicon):
            candidate = change(reading)
            states = candidate.states(words, lexicon, senones)
            if candidate == reading or len(states) > len(scores):
                continue
            candidate_path, total = viterbi(scores, states)
            if total > best:
                path, best, reading = candidate_path, total, candidate
        if reading == before:
            break
    return Alignment(path, best / len(scores), reading)


def _check_words(transcripts: Sequence[Transcript], lexicon: Lexicon) -> None:
    lexicon.check_words(word for transcript in transcripts for word in transcript.words)


def _check_scores(scores: Tensor, transcript: Transcript, senones: SenoneMap) -> None:
    expected = (transcript.frames, len(senones))
    if tuple(scores.shape) != expected:
        raise ValueError(
            f"utterance {transcript.key!r}: scores must have shape {expected}, (frames, senones), "
            f"got {tuple(scores.shape)}"
        )
    if not bool(scores.isfinite().all()):
        raise ValueError(
            f"utterance {transcript.key!r}: scores must be finite, got NaN or infinity"
        )
