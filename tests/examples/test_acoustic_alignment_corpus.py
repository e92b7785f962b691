"""A corpus is aligned from transcripts alone, by a network."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchaudio", reason="alignment needs the extra 'examples'")

from examples.acoustic.alignment import Alignments  # noqa: E402
from examples.acoustic.corpora.recording import (  # noqa: E402
    NormalisationMode,
    RecordedCorpus,
    Recording,
)
from examples.acoustic.corpus import Corpus  # noqa: E402
from examples.acoustic.flat_start import FlatStartOptions, align_corpus  # noqa: E402
from examples.acoustic.realignment import realign_corpus  # noqa: E402
from tests.examples.test_acoustic_alignment import LEXICON, SENONES, ToySpeech  # noqa: E402


def toy_corpus(
    speech: ToySpeech, *, too_short: bool = False, normalisation: NormalisationMode = "global"
) -> Corpus:
    """A corpus of the toy's utterances: most train, some valid and test."""
    recordings = []
    for i, transcript in enumerate(speech.transcripts):
        split = {0: "valid", 1: "test"}.get(i % 10, "train")
        features = speech.features[transcript.key]
        if too_short and i == 5:
            features = features[:3]
        recordings.append(
            Recording(
                key=transcript.key,
                speaker="toy",
                split=split,
                words=transcript.words,
                features=features,
            )
        )
    return RecordedCorpus(
        name="toy", recordings=tuple(recordings), senones=SENONES, lexicon=LEXICON
    ).finish(normalisation=normalisation)


def agreement(found: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> float:
    right = sum(int((senones == truth[key]).sum()) for key, senones in found.items())
    return right / sum(len(senones) for senones in found.values())


def test_corpus_is_aligned_from_transcripts() -> None:
    speech = ToySpeech(120, seed=0)
    corpus = toy_corpus(speech)
    likelihoods: list[float] = []

    def note(_: int, alignments: Alignments) -> None:
        likelihoods.append(alignments.log_likelihood)

    options = FlatStartOptions(
        realignments=4, epochs=4, context=1, hidden=64, batch_frames=128, silence_frames=12
    )
    found = align_corpus(corpus, options, on_round=note)
    assert set(found) == {transcript.key for transcript in speech.transcripts}
    assert agreement(found, speech.truth) > 0.8
    assert all(b > a for a, b in itertools.pairwise(likelihoods))
    aligned = corpus.with_alignments(found)
    for before, after in zip(corpus.train, aligned.train, strict=True):
        assert before.senones is None
        assert after.senones is not None
        assert len(after.senones) == len(before.features)
    torch.rand(1)
    state = torch.get_rng_state()
    assert agreement(align_corpus(corpus, options), found) == 1.0
    assert torch.equal(torch.get_rng_state(), state)


def test_model_of_every_third_frame_aligns_every_frame() -> None:
    """Scores that point at the true senone of each stack's centre give back all the truth."""
    speech = ToySpeech(20, seed=2)
    for key, truth in speech.truth.items():
        speech.features[key] = torch.nn.functional.one_hot(truth, len(SENONES)).float()
    corpus = toy_corpus(speech, normalisation="none")
    assert corpus.stacking.subsample == 3

    def score(features: Tensor) -> Tensor:
        centre = features.unflatten(1, (corpus.stacking.stack, len(SENONES)))[:, 1]
        return 5.0 * centre

    found = realign_corpus(corpus, score)
    assert agreement(found.senones(), speech.truth) == 1.0
    assert found.log_likelihood == pytest.approx(5.0)
    assert not found.left_out


def test_short_utterances_are_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    corpus = toy_corpus(ToySpeech(20, seed=1), too_short=True)
    options = FlatStartOptions(realignments=1, epochs=1, context=1, hidden=8)
    found = align_corpus(corpus, options)
    assert len(found) == 19
    assert "utterance-5" not in found
    assert "15 of 16 utterances aligned" in caplog.text
    assert "1 left out (utterance-5: 3 frames for" in caplog.text
    left = next(u for u in corpus.with_alignments(found).train if u.key == "utterance-5")
    assert left.senones is None


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="realignments must be at least 1, got 0"):
        FlatStartOptions(realignments=0)
    with pytest.raises(ValueError, match="context must be at least 0, got -1"):
        FlatStartOptions(context=-1)
