"""Alignment of a corpus without alignments, which later runs read from a cache."""

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
    """Return the corpus with targets. A corpus that has targets is returned unchanged.

    Several ranks may call it at the same time. One of them computes the alignments, which depend
    only on the corpus and the options.

    Args:
        corpus: corpus with transcripts.
        options: options of the alignment.
        cache_dir: folder of the cache. None: ``default_cache_dir()``.
        only_cached: whether to return the corpus without targets if the cache does not contain
            them. Alignment trains a network, which takes too long for a test.
    """
    if any(each.senones is not None for split in corpus.splits.values() for each in split):
        return corpus
    align_options = options or FlatStartOptions()
    folder, inputs = cache_dir or default_cache_dir(), _alignment_inputs(corpus, align_options)
    if only_cached and not are_cached(corpus.name, inputs, folder):
        return corpus
    alignments = cached_alignments(
        corpus.name, inputs, folder, lambda: align_corpus(corpus, align_options)
    )
    return corpus.with_alignments(alignments)


def _alignment_inputs(corpus: Corpus, options: FlatStartOptions) -> dict[str, Any]:
    """Return everything that the alignments depend on: features, words, phones and options."""
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
