"""Realignment finds the truth of a toy HMM, and raises the likelihood on the way."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchaudio", reason="alignment needs the extra 'examples'")

from examples.acoustic.alignment import (  # noqa: E402
    Alignments,
    flat_start,
    realign,
    viterbi,
)
from examples.acoustic.lexicon import Lexicon  # noqa: E402
from examples.acoustic.reading import Reading, Transcript  # noqa: E402
from examples.acoustic.senones import SenoneMap  # noqa: E402

LEXICON = Lexicon.from_dict(
    {"ka": "k a", "to": ["t o", "t u"], "kit": "k i t", "at": "a t", "otu": "o t u"}
)
SENONES = SenoneMap(phones=("sil", *LEXICON.phones))
DIMENSIONS = 8


def _pause_chances(words: int) -> list[float]:
    """Recordings begin and end in silence; between words it is rarer."""
    return [0.9, *[0.3] * (words - 1), 0.9]


class ToySpeech:
    """Utterances of an HMM with Gaussian emissions, with the senone of every frame."""

    def __init__(self, count: int, seed: int) -> None:
        draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        means = 2.5 * torch.randn(len(SENONES), DIMENSIONS, generator=generator)
        self.transcripts: list[Transcript] = []
        self.features: dict[str, Tensor] = {}
        self.truth: dict[str, Tensor] = {}
        self.readings: dict[str, Reading] = {}
        for i in range(count):
            words = tuple(draw.choice(LEXICON.words) for _ in range(draw.randint(1, 5)))
            reading = Reading(
                tuple(draw.randrange(len(LEXICON.pronunciations(word))) for word in words),
                tuple(draw.random() < chance for chance in _pause_chances(len(words))),
            )
            states = reading.states(words, LEXICON, SENONES)
            truth = torch.tensor([s for s in states for _ in range(draw.randint(2, 6))])
            noise = torch.randn(len(truth), DIMENSIONS, generator=generator)
            key = f"utterance-{i}"
            self.transcripts.append(Transcript(key, words, len(truth)))
            self.features[key] = means[truth] + noise
            self.truth[key] = truth
            self.readings[key] = reading

    def gaussian_scores(self, alignments: Alignments) -> dict[str, Tensor]:
        """Log densities (T, S) of unit-variance Gaussians fitted to the alignments."""
        keys = list(alignments.by_key)
        frames = torch.cat([self.features[key] for key in keys])
        targets = torch.cat([alignments.by_key[key].senones for key in keys])
        sums = torch.zeros(len(SENONES), DIMENSIONS).index_add_(0, targets, frames)
        means = sums / torch.bincount(targets, minlength=len(SENONES)).clamp(min=1)[:, None]
        return {k: -0.5 * torch.cdist(f, means).square() for k, f in self.features.items()}

    def accuracy(self, alignments: Alignments) -> float:
        pairs = [(a.senones, self.truth[key]) for key, a in alignments.by_key.items()]
        right = sum(int((found == truth).sum()) for found, truth in pairs)
        return right / sum(len(truth) for _, truth in pairs)


def test_realignment_from_a_flat_start_finds_the_truth() -> None:
    speech = ToySpeech(200, seed=0)
    current = flat_start(speech.transcripts, LEXICON, SENONES, silence_frames=12)
    start = speech.accuracy(current)
    likelihoods = []
    for _ in range(6):
        scores = speech.gaussian_scores(current)
        current = realign(
            speech.transcripts, scores.__getitem__, LEXICON, SENONES, previous=current
        )
        likelihoods.append(current.log_likelihood)
    assert all(b > a - 1e-4 for a, b in itertools.pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 0.5
    assert start < 0.5
    assert speech.accuracy(current) > 0.95


def test_pauses_and_variants_are_found_with_true_scores() -> None:
    speech = ToySpeech(40, seed=1)
    scores = {
        key: 6.0 * torch.nn.functional.one_hot(truth, len(SENONES)).float()
        for key, truth in speech.truth.items()
    }
    found = realign(speech.transcripts, scores.__getitem__, LEXICON, SENONES)
    assert len(found.by_key) == len(speech.transcripts)
    for key, alignment in found.by_key.items():
        assert alignment.reading == speech.readings[key]
        assert torch.equal(alignment.senones, speech.truth[key])
        assert alignment.log_likelihood == pytest.approx(6.0)


@pytest.mark.parametrize("seed", range(5))
def test_viterbi_is_the_best_of_all_segmentations(seed: int) -> None:
    scores = 3.0 * torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)) - 100.0
    states = [2, 0, 5, 0]
    best = max(
        sum(float(scores[t, states[sum(t >= cut for cut in cuts)]]) for t in range(8))
        for cuts in itertools.combinations(range(1, 8), len(states) - 1)
    )
    path, total = viterbi(scores, states)
    assert total == pytest.approx(best, rel=1e-5)
    assert [state for state, _ in itertools.groupby(path.tolist())] == states
    assert total == pytest.approx(float(scores[torch.arange(8), path].sum()), rel=1e-5)


def test_viterbi_refuses_what_has_no_path() -> None:
    scores = torch.zeros(4, 6)
    with pytest.raises(ValueError, match="5 states need as many frames and at least one, got 4"):
        viterbi(scores, [0, 1, 2, 3, 4])
    with pytest.raises(ValueError, match="senone 1 twice in a row"):
        viterbi(scores, [0, 1, 1])
    with pytest.raises(ValueError, match="0 states"):
        viterbi(scores, [])


def test_what_is_too_short_is_left_out_and_named() -> None:
    transcripts = [
        Transcript("long", ("ka",), 12),
        Transcript("tight", ("ka",), 6),
        Transcript("short", ("ka",), 5),
        Transcript("empty", (), 30),
    ]
    flat = flat_start(transcripts, LEXICON, SENONES, silence_frames=0)
    again = realign(
        transcripts,
        lambda key: torch.zeros({"long": 12, "tight": 6}[key], len(SENONES)),
        LEXICON,
        SENONES,
    )
    for result in (flat, again):
        assert set(result.by_key) == {"long", "tight"}
        assert dict(result.left_out) == {"short": "5 frames for 6 states", "empty": "no words"}
        assert "2 of 4 utterances aligned" in result.summary()
        assert "2 left out (short: 5 frames for 6 states; empty: no words)" in result.summary()
    assert flat.by_key["tight"].senones.tolist() == [*SENONES.of("k"), *SENONES.of("a")]


def test_wrong_input_is_named() -> None:
    transcript = Transcript("u", ("ka",), 12)
    with pytest.raises(KeyError, match=r"2 word\(s\) without pronunciation: ku, ma"):
        flat_start([Transcript("u", ("ma", "ku"), 50)], LEXICON, SENONES)
    with pytest.raises(ValueError, match=r"'u': scores must have shape \(12, 21\)"):
        realign([transcript], lambda _: torch.zeros(11, 21), LEXICON, SENONES)
    with pytest.raises(ValueError, match="'u': scores must be finite"):
        realign([transcript], lambda _: torch.full((12, 21), torch.inf), LEXICON, SENONES)
