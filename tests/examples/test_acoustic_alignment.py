"""Tests of alignment from transcripts: best paths, pauses, variants, utterances left out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchaudio", reason="alignment needs the extra 'examples'")

from examples.acoustic.alignment import (  # noqa: E402
    Alignments,
    viterbi,
)
from examples.acoustic.corpora.recording import (  # noqa: E402
    NormalisationMode,
    RecordedCorpus,
    Recording,
)
from examples.acoustic.corpus import Corpus  # noqa: E402
from examples.acoustic.flat_start import FlatStartOptions, align_corpus  # noqa: E402
from examples.acoustic.lexicon import Lexicon  # noqa: E402
from examples.acoustic.reading import Reading, Transcript  # noqa: E402
from examples.acoustic.senones import SenoneMap  # noqa: E402

LEXICON = Lexicon.from_dict(
    {"ka": "k a", "to": ["t o", "t u"], "kit": "k i t", "at": "a t", "otu": "o t u"}
)
SENONES = SenoneMap(phones=("sil", *LEXICON.phones))
DIMENSIONS = 8


def _pause_chances(words: int) -> list[float]:
    """Probability of a pause before, between and after words. It is lower between words."""
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


def toy_corpus(speech: ToySpeech, *, normalisation: NormalisationMode = "global") -> Corpus:
    """A corpus of the utterances: a tenth each in valid and test, the others in train."""
    recordings = []
    for i, transcript in enumerate(speech.transcripts):
        split = {0: "valid", 1: "test"}.get(i % 10, "train")
        recordings.append(
            Recording(
                key=transcript.key,
                speaker="toy",
                split=split,
                words=transcript.words,
                features=speech.features[transcript.key],
            )
        )
    return RecordedCorpus(
        name="toy", recordings=tuple(recordings), senones=SENONES, lexicon=LEXICON
    ).finish(normalisation=normalisation)


def agreement(alignments: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> float:
    right = sum(int((senones == truth[key]).sum()) for key, senones in alignments.items())
    return right / sum(len(senones) for senones in alignments.values())


def test_corpus_is_aligned_from_transcripts() -> None:
    speech = ToySpeech(60, seed=0)
    corpus = toy_corpus(speech)
    likelihoods: list[float] = []

    def note(_: int, alignments: Alignments) -> None:
        likelihoods.append(alignments.log_likelihood)

    options = FlatStartOptions(
        realignments=3, epochs=4, context=1, hidden=64, batch_frames=128, silence_frames=12
    )
    alignments_by_key = align_corpus(corpus, options, on_round=note)
    assert set(alignments_by_key) == {transcript.key for transcript in speech.transcripts}
    assert agreement(alignments_by_key, speech.truth) > 0.8
    assert all(b > a for a, b in itertools.pairwise(likelihoods))
    aligned = corpus.with_alignments(alignments_by_key)
    for before, after in zip(corpus.train, aligned.train, strict=True):
        assert before.senones is None
        assert after.senones is not None
        assert len(after.senones) == len(before.features)
