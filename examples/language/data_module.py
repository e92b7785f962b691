"""The DataModule of the language example, set up by names and numbers as in a YAML file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from examples.array_cache import default_cache_dir
from examples.corpus_data import CorpusData, builder_of, check_arguments
from examples.language.corpora.folder import build_folder_documents
from examples.language.corpora.shards import build_shards_corpus
from examples.language.corpora.stdlib import build_stdlib_documents
from examples.language.corpus import DEFAULT_BPE_SIZE, Corpus, definition_of, tokenise
from examples.language.documents import Documents
from examples.language.windows import Batch, WindowDataset, WindowSampler
from examples.rank_batches import rank_and_world_size, rank_loader

CorpusName = Literal["stdlib", "folder", "shards"]

BUILDERS: dict[str, Callable[..., Documents | Corpus]] = {
    "stdlib": build_stdlib_documents,
    "folder": build_folder_documents,
    "shards": build_shards_corpus,
}


class Text(CorpusData[Corpus]):
    """Text from one of three sources, packed into windows of tokens.

    Every rank has windows of its own and the same number of batches (``WindowSampler``; pass
    ``use_distributed_sampler=False`` to the Trainer to say so). Tokens are cached: one rank of each
    host makes them, the others read them.

    Args:
        corpus: ``"stdlib"``, ``"folder"`` or ``"shards"``.
        corpus_args: arguments of ``build_stdlib_documents``, ``build_folder_documents`` or
            ``build_shards_corpus``.
        context: T, tokens of a window.
        batch_windows: windows in a batch of one rank.
        eval_batch_windows: likewise for valid and test; None takes ``batch_windows``.
        tokenizer: ``"bytes"``, ``"bpe"`` (trained on the train split) or the path of a
            ``tokenizer.json``; shards say theirs in ``corpus_args``.
        vocabulary_size: of a BPE that is trained.
        seed: of the order of the windows.
        num_workers: processes that load batches.
        cache_dir: folder of the cache; None is the user's (``default_cache_dir``).

    Raises:
        ValueError: if the corpus is unknown, its arguments do not fit (it lists those that do), or
            a number is out of range.
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
        if corpus == "shards" and tokenizer != "bytes":
            raise ValueError(
                f"shards are tokens already: give their tokenizer in corpus_args, got {tokenizer!r}"
            )
        self.context = context
        self.batch_windows = batch_windows
        self.eval_batch_windows = eval_batch_windows
        self.seed = seed
        self.num_workers = num_workers
        self._tokens: dict[str, Any] = {
            "tokenizer": tokenizer,
            "vocabulary_size": vocabulary_size,
            "cache_dir": cache_dir or str(default_cache_dir()),
        }

    def _build(self) -> Corpus:
        built = self._builder(**self._arguments)
        if not isinstance(built, Documents):
            return built
        return tokenise(built, definition=self.fitted.get("definition"), **self._tokens)

    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        return {"definition": definition_of(corpus.vocabulary)}

    def _split_hint(self, split: str) -> str:
        return f"see corpus_args of {self.corpus.name} for {split}"

    def prepare_data(self) -> None:
        """Fill the cache, unless a checkpoint is still to be read that says how."""
        if self.is_fitting:
            _ = self.corpus

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of this rank, in another order each epoch."""
        return self._loader("train", self.batch_windows, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """Batches of this rank, in a fixed order; none where there is no valid split."""
        if not len(self.corpus.splits["valid"]):
            return []
        return self._loader("valid", self.eval_batch_windows)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of this rank, in a fixed order."""
        return self._loader("test", self.eval_batch_windows)

    def dataset(self, split: str) -> WindowDataset:
        """Windows of a split.

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
        rank, world_size = _replica_and_replicas(self.trainer)
        sampler = WindowSampler(
            len(dataset),
            batch_windows=batch_windows,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        return rank_loader(dataset, sampler, num_workers=self.num_workers)


def _replica_and_replicas(trainer: pl.Trainer | None) -> tuple[int, int]:
    """Ranks that share one model by tensor parallelism take the same batches."""
    if trainer is None or trainer.lightning_module.device_mesh is None:
        return rank_and_world_size(trainer)
    shares: Any = trainer.strategy
    found = shares.distributed_sampler_kwargs
    return found["rank"], found["num_replicas"]
