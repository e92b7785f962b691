"""Targets for a corpus that comes with transcripts only: aligned once, then read from a cache."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from examples.acoustic.alignment_cache import are_cached, cached_alignments
from examples.acoustic.corpus import Corpus
from examples.acoustic.flat_start import FlatStartOptions, align_corpus
from examples.array_cache import default_cache_dir


def aligned_corpus(
    corpus: Corpus,
    options: FlatStartOptions | None = None,
    *,
    cache_dir: str | Path | None = None,
    only_cached: bool = False,
) -> Corpus:
    """Return the corpus with targets; one that has some already comes back as it is.

    Every rank may call this at the same time: the alignments follow from the seed, so it does not
    matter whose are kept.

    Args:
        corpus: with transcripts, and alignments or none.
        options: how a corpus without alignments is aligned.
        cache_dir: where alignments are kept; by default the user's cache folder.
        only_cached: take alignments from there or none: a corpus to test on is not worth the
            training of a network.
    """
    if any(each.senones is not None for split in corpus.splits.values() for each in split):
        return corpus
    chosen = options or FlatStartOptions()
    folder, made_from = cache_dir or default_cache_dir(), _made_from(corpus, chosen)
    if only_cached and not are_cached(corpus.name, made_from, folder):
        return corpus
    alignments = cached_alignments(
        corpus.name, made_from, folder, lambda: align_corpus(corpus, chosen)
    )
    return corpus.with_alignments(alignments)


def _made_from(corpus: Corpus, options: FlatStartOptions) -> dict[str, Any]:
    """All that the alignments depend on: features, words, phones and options."""
    features = hashlib.sha256()
    for key in sorted(corpus.recorded):
        features.update(corpus.recorded[key].contiguous().numpy().tobytes())
    return {
        "options": asdict(options),
        "senones": asdict(corpus.senones),
        "lexicon": {word: corpus.lexicon.pronunciations(word) for word in corpus.lexicon.words},
        "splits": {
            name: [[utterance.key, utterance.words] for utterance in split]
            for name, split in corpus.splits.items()
        },
        "features": features.hexdigest(),
    }
