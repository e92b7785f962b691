"""The LightningDataModule of the language example. All its arguments can be given in YAML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from examples.array_cache import default_cache_dir
from examples.corpus_data import CorpusData, builder_of, check_arguments
from examples.language.corpus import DEFAULT_BPE_SIZE, Corpus, definition_of, tokenise
from examples.language.documents import Documents, folder_documents, stdlib_documents
from examples.language.windows import Batch, WindowDataset
from examples.rank_batches import EvenSampler, rank_and_world_size, rank_loader

CorpusName = Literal["stdlib", "folder"]

BUILDERS: dict[str, Callable[..., Documents]] = {
    "stdlib": stdlib_documents,
    "folder": folder_documents,
}


class Text(CorpusData[Corpus]):
    """Text from one of two sources, tokenised and divided into windows.

    Ranks read different windows, in equally many batches (``EvenSampler``). Pass
    ``use_distributed_sampler=False`` to the Trainer, because the data module divides the windows
    itself. Tokens are cached. One rank of each host computes them, and the other ranks read them.

    Args:
        corpus: ``"stdlib"`` or ``"folder"``.
        corpus_args: arguments of ``stdlib_documents`` or ``folder_documents``.
        context: T, number of tokens of a window.
        batch_windows: number of windows in a batch of one rank.
        eval_batch_windows: number of windows in a batch of valid and test. None: ``batch_windows``.
        tokenizer: ``"bytes"``, or ``"bpe"`` (trained on the train split).
        vocabulary_size: number of tokens of a BPE that is trained.
        seed: seed of the order of the windows.
        num_workers: number of processes that load batches.
        cache_dir: folder of the cache. None: the user's cache folder (``default_cache_dir``).

    Raises:
        ValueError: the corpus is unknown, its arguments do not fit (the message lists the valid
            ones), or a number is out of range.

    """

    def __init__(
        self,
        corpus: CorpusName = "stdlib",
        corpus_args: dict[str, Any] | None = None,
        context: int = 128,
        batch_windows: int = 16,
        eval_batch_windows: int | None = None,
        tokenizer: str = "bytes",
        vocabulary_size: int = DEFAULT_BPE_SIZE,
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        self._builder = builder_of(BUILDERS, corpus)
        self._arguments = corpus_args or {}
        check_arguments(corpus, self._builder, self._arguments)
        eval_batch_windows = batch_windows if eval_batch_windows is None else eval_batch_windows
        sizes = {
            "context": context,
            "batch_windows": batch_windows,
            "eval_batch_windows": eval_batch_windows,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.context = context
        self.batch_windows = batch_windows
        self.eval_batch_windows = eval_batch_windows
        self.seed = seed
        self.num_workers = num_workers
        self._tokenise_options: dict[str, Any] = {
            "tokenizer": tokenizer,
            "vocabulary_size": vocabulary_size,
            "cache_dir": cache_dir or str(default_cache_dir()),
        }

    def _build(self) -> Corpus:
        source = self._builder(**self._arguments)
        definition = self.fitted.get("definition")
        return tokenise(source, definition=definition, **self._tokenise_options)

    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        return {"definition": definition_of(corpus.vocabulary)}

    def _split_hint(self, split: str) -> str:
        return f"see corpus_args of {self.corpus.name} for {split}"

    def prepare_data(self) -> None:
        """Fill the cache before training."""
        # In evaluation, the tokenizer is part of the checkpoint, which Lightning reads later.
        if self.is_fitting:
            _ = self.corpus

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the training batches of this rank, in a different order in each epoch."""
        return self._loader("train", self.batch_windows, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """Return the valid batches of this rank, in a fixed order. Empty without a valid split."""
        if not len(self.corpus.splits["valid"]):
            return []
        return self._loader("valid", self.eval_batch_windows)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the test batches of this rank, in a fixed order."""
        return self._loader("test", self.eval_batch_windows)

    def dataset(self, split: str) -> WindowDataset:
        """Return the windows of a split.

        Raises:
            ValueError: the split is empty.

        """
        stream = self.corpus.splits[split]
        if not len(stream):
            raise self._missing(split)
        vocabulary = self.corpus.vocabulary
        return WindowDataset(
            stream,
            context=self.context,
            end=vocabulary.end,
            token_bytes=vocabulary.token_bytes,
        )

    def _loader(
        self, split: str, batch_windows: int, *, shuffle: bool = False
    ) -> DataLoader[Batch]:
        dataset = self.dataset(split)
        rank, world_size = _data_parallel_rank_and_size(self.trainer)
        sampler = EvenSampler(
            len(dataset),
            batch_items=batch_windows,
            whole=shuffle,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler, num_workers=self.num_workers)


def _data_parallel_rank_and_size(trainer: pl.Trainer | None) -> tuple[int, int]:
    """Return the rank and the number of ranks of data parallelism.

    The ranks of one tensor-parallel group read the same batches.
    """
    if trainer is None or trainer.lightning_module.device_mesh is None:
        return rank_and_world_size(trainer)
    strategy: Any = trainer.strategy
    sampler_options = strategy.distributed_sampler_kwargs
    return sampler_options["rank"], sampler_options["num_replicas"]
