"""DataModule of the speech example, which can be configured in YAML."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch.utils.data import DataLoader

from examples.acoustic.batching import FrameBatchSampler
from examples.acoustic.corpora.an4 import build_an4_corpus
from examples.acoustic.corpora.synthesis import build_synthetic_corpus
from examples.acoustic.corpus import Batch, Corpus, UtteranceDataset
from examples.acoustic.fitted import Fitted
from examples.acoustic.flat_start import aligned_corpus
from examples.array_cache import default_cache_dir
from examples.corpus_data import CorpusData, builder_of, check_arguments
from examples.rank_batches import rank_and_world_size, rank_loader

_LOG = logging.getLogger(__name__)

CorpusName = Literal["synthetic", "an4"]

BUILDERS: dict[str, Callable[..., Corpus]] = {
    "synthetic": build_synthetic_corpus,
    "an4": build_an4_corpus,
}


class AcousticDataModule(CorpusData[Corpus]):
    """Synthesised speech or AN4, in mini-batches of a limited number of frames.

    Every rank has the same number of batches. The batch sampler distributes them among ranks. Pass
    ``use_distributed_sampler=False`` to the Trainer. With ``True``, Lightning does not replace the
    sampler, because it is a distributed one.

    Checkpoints contain the senones, the lexicon, the normalisation and the transcripts of the train
    split. To evaluate a checkpoint, a corpus therefore needs only the split that is evaluated.

    Synthesised speech, and alignments of AN4 from a flat start (one to two minutes), are cached.
    One rank of each host computes them, and the other ranks read the cache. Only training computes
    alignments. Evaluation reads them from the cache, if they are there.

    Args:
        corpus: ``"synthetic"`` or ``"an4"``.
        corpus_args: arguments of ``build_synthetic_corpus`` or ``build_an4_corpus``.
        batch_frames: largest number of frames of a batch, including padding (2,048 in
            two_tiered_bmuf_gtc, section 3.2).
        seed: seed of the order of the batches.
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
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        self._name = corpus
        self._cache_dir = cache_dir or str(default_cache_dir())
        arguments = dict(corpus_args or {})
        if corpus == "synthetic":
            arguments.setdefault("cache_dir", self._cache_dir)
        builder = builder_of(BUILDERS, corpus)
        check_arguments(corpus, builder, arguments, internal=("fitted",))
        self._builder = partial(builder, **arguments)
        self.batch_frames = batch_frames
        self.seed = seed

    def prepare_data(self) -> None:
        """Fill the cache before training. In evaluation, it is filled at the first use."""
        if self.is_fitting:
            self._build()

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a different order in each epoch.

        Utterances without targets are left out, with a warning.
        """
        train = self.split("train")
        aligned = [i for i, utterance in enumerate(train) if utterance.senones is not None]
        if len(aligned) < len(train):
            missing = len(train) - len(aligned)
            _LOG.warning("%d of %d train utterances have no targets", missing, len(train))
        return self._loader(UtteranceDataset(train, aligned), shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader(UtteranceDataset(self.split("valid")), shuffle=False)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader(UtteranceDataset(self.split("test")), shuffle=False)

    def _loader(self, dataset: UtteranceDataset, *, shuffle: bool) -> DataLoader[Batch]:
        rank, world_size = rank_and_world_size(self.trainer)
        sampler = FrameBatchSampler(
            dataset.lengths,
            batch_frames=self.batch_frames,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler)

    def _build(self) -> Corpus:
        fitted = Fitted.from_state_dict(self.fitted) if self.fitted else None
        corpus = self._builder(fitted=fitted)
        return aligned_corpus(corpus, self._cache_dir, only_cached=not self.is_fitting)

    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        return corpus.fitted.state_dict()

    def _split_hint(self, split: str) -> str:
        return {
            "synthetic": f"set corpus_args.{split}_fraction",
            "an4": f'its utterances in the manifest have "split": "{split}"',
        }[self._name]
