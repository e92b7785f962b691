"""DataModule of the speech example, which can be configured in YAML."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from examples.acoustic.align_once import aligned_corpus
from examples.acoustic.corpora.an4 import build_an4_corpus
from examples.acoustic.corpora.synthesis import build_synthetic_corpus
from examples.acoustic.corpus import Corpus, CorpusDataModule
from examples.acoustic.fitted import Fitted
from examples.array_cache import default_cache_dir
from examples.corpus_data import builder_of, check_arguments

CorpusName = Literal["synthetic", "an4"]

BUILDERS: dict[str, Callable[..., Corpus]] = {
    "synthetic": build_synthetic_corpus,
    "an4": build_an4_corpus,
}


class AcousticDataModule(CorpusDataModule):
    """Synthesised speech or AN4, in mini-batches of a limited number of frames.

    Checkpoints contain the senones, the lexicon, the normalisation and the transcripts of the train
    split. To evaluate a checkpoint, a corpus therefore needs only the split that is evaluated.

    Synthesised speech and alignments are cached. One rank of each host
    computes them, and the other ranks read the cache.

    Args:
        corpus: ``"synthetic"`` or ``"an4"``.
        corpus_args: arguments of ``build_synthetic_corpus`` or ``build_an4_corpus``.
        batch_frames: largest number of frames of a batch, including padding (2,048 in
            two_tiered_bmuf_gtc, section 3.2).
        seed: seed of the order of the batches.
        num_workers: number of processes that load batches.
        align: whether to align a corpus without alignments from a flat start
            (``aligned_corpus``). For AN4, this takes one to two minutes in the first run. Only
            training computes alignments. Evaluation reads them from the cache, if they are there.
        cache_dir: folder of the cache. None: ``default_cache_dir()``.

    Raises:
        ValueError: the corpus is unknown, or its arguments are wrong. The error lists valid ones.
    """

    def __init__(
        self,
        corpus: CorpusName = "synthetic",
        corpus_args: dict[str, Any] | None = None,
        batch_frames: int = 2048,
        seed: int = 0,
        num_workers: int = 0,
        align: bool = True,
        cache_dir: str | None = None,
    ) -> None:
        self._name = corpus
        self._align = align
        builder = builder_of(BUILDERS, corpus)
        arguments = dict(corpus_args or {})
        folder = cache_dir or str(default_cache_dir())
        has_cache = "cache_dir" in inspect.signature(builder).parameters
        if has_cache:
            arguments.setdefault("cache_dir", folder)
        if "fitted" in arguments:
            raise ValueError("fitted is read from the checkpoint: remove it from corpus_args")
        check_arguments(corpus, builder, arguments, internal=("fitted",))
        self._builder = partial(builder, **arguments)
        self._cache_dir = folder
        super().__init__(
            self._read,
            prepare=self._read if has_cache or align else None,
            batch_frames=batch_frames,
            seed=seed,
            num_workers=num_workers,
        )

    def _read(self) -> Corpus:
        fitted = Fitted.from_state_dict(self.fitted) if self.fitted else None
        corpus = self._builder(fitted=fitted)
        if not self._align:
            return corpus
        return aligned_corpus(corpus, cache_dir=self._cache_dir, only_cached=not self.is_fitting)

    def _split_hint(self, split: str) -> str:
        return {
            "synthetic": f"set corpus_args.{split}_fraction",
            "an4": f'its utterances in the manifest have "split": "{split}"',
        }[self._name]
