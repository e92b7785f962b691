"""Which senone each frame of a transcribed utterance belongs to.

Hybrid training from a flat start: cut each utterance into equal pieces, train a model on them, let
it align the utterances anew, and so on. Alignment runs at the rate of the recording (100 frames/s),
as short phones have fewer frames than states at a third of it. A model that sees every third
stacked frame scores the features at each phase, and ``Stacking.interleave`` joins the scores.
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

# Log probability of the blank of CTC, which an HMM does not have: far below any path's score.
_IMPOSSIBLE = -1e9


@dataclass(frozen=True)
class Alignment:
    """One aligned utterance: senones (T,) int64, mean log likelihood per frame, reading."""

    senones: Tensor
    log_likelihood: float
    reading: Reading


@dataclass(frozen=True)
class Alignments:
    """Alignments by key, and the utterances that have none with the reason."""

    by_key: Mapping[str, Alignment]
    left_out: Mapping[str, str]

    @property
    def log_likelihood(self) -> float:
        """Mean log likelihood per frame over all frames; what realignment should raise."""
        frames = sum(len(a.senones) for a in self.by_key.values())
        total = sum(a.log_likelihood * len(a.senones) for a in self.by_key.values())
        return total / frames if frames else float("nan")

    def senones(self) -> dict[str, Tensor]:
        """Return the senones alone, by key."""
        return {key: alignment.senones for key, alignment in self.by_key.items()}

    def summary(self) -> str:
        """Say in one line how many utterances were aligned and which were not."""
        done, missed = len(self.by_key), len(self.left_out)
        line = f"{done} of {done + missed} utterances aligned, {self.log_likelihood:.3f} per frame"
        if not missed:
            return line
        first = "; ".join(f"{key}: {why}" for key, why in list(self.left_out.items())[:3])
        return f"{line}; {missed} left out ({first}{'; ...' if missed > 3 else ''})"


def viterbi(log_likelihoods: Tensor, states: Sequence[int]) -> tuple[Tensor, float]:
    """Return the best path through the states from first to last, each visited at least once.

    Transitions cost nothing. This is forced alignment of CTC whose blank is impossible.

    Args:
        log_likelihoods: (T, S), finite.
        states: senones in order; neighbours must differ, as CTC would want a blank between equals.

    Returns:
        Senones (T,) int64 and the sum of their log likelihoods.

    Raises:
        ValueError: no states, more states than frames, or equal neighbours.
    """
    frames = log_likelihoods.shape[0]
    if not 0 < len(states) <= frames:
        raise ValueError(f"{len(states)} states need as many frames and at least one, got {frames}")
    equal = [a for a, b in zip(states[:-1], states[1:], strict=True) if a == b]
    if equal:
        raise ValueError(
            f"neighbouring states must differ, got senone {equal[0]} twice in a row; use at least "
            "two states per phone"
        )
    scores = log_likelihoods.detach().float().cpu()
    blank = torch.full((frames, 1), _IMPOSSIBLE)
    emission = torch.cat([scores, blank], dim=1).unsqueeze(0).contiguous()
    targets = torch.tensor([states], dtype=torch.int32)
    path, chosen = forced_align(emission, targets, blank=scores.shape[1])
    return path[0].long(), float(chosen[0].double().sum())


def flat_start(
    transcripts: Sequence[Transcript],
    lexicon: Lexicon,
    senones: SenoneMap,
    *,
    silence_frames: int = 15,
) -> Alignments:
    """Share the frames evenly: silence, the words' first pronunciations, silence.

    There are no scores yet, so that the log likelihoods are NaN.

    Args:
        transcripts: the utterances.
        lexicon: pronunciations of all words.
        senones: numbering.
        silence_frames: see ``segmentation.uniform_segmentation``.

    Raises:
        KeyError: words without pronunciation (all of them are listed).
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
    """Align every utterance anew, with the pauses and pronunciations that score best.

    Args:
        transcripts: the utterances.
        score: log likelihoods (frames, S) of the utterance with this key, for instance from
            ``decoding.scaled_likelihoods``.
        lexicon: pronunciations of all words.
        senones: the model's senones.
        previous: alignments whose readings the search starts from.
        passes: how often each pause and each pronunciation is tried.

    Raises:
        KeyError: words without pronunciation (all of them are listed).
        ValueError: scores of another shape than (frames, S), or not finite.
    """
    _check_words(transcripts, lexicon)
    aligned: dict[str, Alignment] = {}
    left_out: dict[str, str] = {}
    for transcript in transcripts:
        known = previous.by_key.get(transcript.key) if previous else None
        reading = known.reading if known else first_reading(transcript, lexicon, senones)
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
    """Climb from the reading: keep each single change that raises the score of the whole path."""
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
    wanted = (transcript.frames, len(senones))
    if tuple(scores.shape) != wanted:
        raise ValueError(
            f"utterance {transcript.key!r}: scores must have shape {wanted}, (frames, senones), "
            f"got {tuple(scores.shape)}"
        )
    if not bool(scores.isfinite().all()):
        raise ValueError(
            f"utterance {transcript.key!r}: scores must be finite, got NaN or infinity"
        )
