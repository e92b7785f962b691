"""AN4 with senones: transcripts and cepstra in, alignments found from a flat start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from examples.acoustic.alignment import Alignments
from examples.acoustic.alignment_cache import cached_alignments, file_digest
from examples.acoustic.corpora.an4 import build_an4_corpus
from examples.acoustic.corpus import Corpus
from examples.acoustic.flat_start import FlatStartOptions, align_corpus

_SOURCES = ("an4_mfcc.npz", "manifest.jsonl", "an4.dic")


def align_an4(
    folder: str | Path,
    *,
    seed: int = 0,
    realignments: int = 5,
    cache_dir: str | Path | None = None,
    options: FlatStartOptions | None = None,
    on_round: Callable[[int, Alignments], None] | None = None,
    **corpus_options: Any,
) -> Corpus:
    """Read AN4 and give every utterance senones; takes about a minute on a core, once.

    The alignments come from cepstra with two orders of deltas at 100 frames/s, whatever the
    features of the returned corpus are. All splits are aligned by a network that learned from the
    train split alone; utterances too short for their words keep no senones, and the log names them.

    With several ranks, call it on one rank of each host first (``CorpusDataModule`` has
    ``prepare`` for that), with a ``cache_dir``.

    Args:
        folder: AN4's files, see ``build_an4_corpus``.
        seed: of the aligning network.
        realignments: rounds of training and aligning.
        cache_dir: where alignments are kept between runs; None makes them anew.
        options: the other settings of the flat start; their seed and rounds do not count.
        on_round: see ``align_corpus``; not called where the cache has the result.
        corpus_options: for ``build_an4_corpus``, such as ``delta_orders``.

    Raises:
        FileNotFoundError: files are missing in the folder; all of them are named.
        ValueError: options out of range, or a damaged file in the cache.
    """
    corpus = build_an4_corpus(path=folder, **corpus_options)
    chosen = replace(options or FlatStartOptions(), seed=seed, realignments=realignments)
    made_from = {
        "files": {name: file_digest(Path(folder) / name) for name in _SOURCES},
        "options": asdict(chosen),
    }
    alignments = cached_alignments(
        "an4",
        made_from,
        cache_dir,
        lambda: align_corpus(
            build_an4_corpus(path=folder, delta_orders=2), chosen, on_round=on_round
        ),
    )
    return corpus.with_alignments(alignments)
