"""New alignments of a corpus by a trained model that sees stacked and subsampled frames."""

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
    """Align all splits at the rate of the recording with a model at a fraction of it.

    The model scores the features at each phase of the subsampling; interleaved, the scores are one
    row for each frame of the recording. Put the result into the corpus with
    ``corpus.with_alignments(alignments.senones())``.

    Args:
        corpus: what the model was trained on.
        score: features (T', D) of an utterance to scaled log likelihoods (T', S), as
            ``decoding.scaled_likelihoods`` makes them of the model's outputs.
        previous: alignments whose pauses and pronunciations the search starts from.

    Returns:
        Alignments of the utterances of all splits; those too short for their words are named in
        ``left_out``.

    Raises:
        KeyError: words without pronunciation (all of them are listed).
        ValueError: scores of another shape, or not finite.
    """

    def at_recording_rate(key: str) -> Tensor:
        phases = range(corpus.stacking.subsample)
        return corpus.stacking.interleave([score(corpus.at_phase(key, p)) for p in phases])

    transcripts = [
        Transcript(utterance.key, utterance.words, len(corpus.recorded[utterance.key]))
        for split in corpus.splits.values()
        for utterance in split
    ]
    return realign(
        transcripts, at_recording_rate, corpus.lexicon, corpus.senones, previous=previous
    )
