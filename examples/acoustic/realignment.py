"""Alignment of a corpus by a trained model with stacked and subsampled frames."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from examples.acoustic.alignment import Alignments, realign
from examples.acoustic.corpus import Corpus
from examples.acoustic.reading import Transcript


def realign_corpus(
    corpus: Corpus,
    score: Callable[[Tensor], Tensor],
    *,
    previous: Alignments | None = None,
) -> Alignments:
    """Align all splits at the frame rate of the recording, by a model at a lower frame rate.

    The model computes scores at each phase of the subsampling. Interleaved, they have a row for
    each frame of the recording. ``corpus.with_alignments(alignments.senones())`` returns the corpus
    with the new targets.

    Args:
        corpus: training corpus of the model.
        score: function from features (T', D) of an utterance to scaled log likelihoods (T', S), as
            of ``decoding.scaled_likelihoods``.
        previous: alignments with the initial pauses and pronunciations of the search.

    Returns:
        Alignments of all splits. Utterances that are too short for their words are in
        ``left_out``.

    Raises:
        KeyError: words have no pronunciation. The error lists all of them.
        ValueError: scores are not finite, or their shape is wrong.
    """

    def score_at_recording_rate(key: str) -> Tensor:
        phases = range(corpus.stacking.subsample)
        return corpus.stacking.interleave([score(corpus.at_phase(key, p)) for p in phases])

    transcripts = [
        Transcript(utterance.key, utterance.words, len(corpus.recorded[utterance.key]))
        for split in corpus.splits.values()
        for utterance in split
    ]
    return realign(
        transcripts, score_at_recording_rate, corpus.lexicon, corpus.senones, previous=previous
    )
