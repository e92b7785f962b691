"""Token streams of three splits, and tokenisation of documents with a cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array
from examples.language.documents import SPLITS, Documents
from examples.language.vocabulary import BPEVocabulary, ByteVocabulary, Vocabulary, read_bpe

DEFAULT_BPE_SIZE = 4096


class TokenStream:
    """A sequence of tokens that is stored in one or several arrays, which are not copied.

    Args:
        parts: (N,) arrays of unsigned integers, in memory or memory-mapped.

    """

    def __init__(self, parts: Iterable[np.ndarray]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self._ends[-1]) if self._parts else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens in ``[start, stop)`` as int64, up to the end of the stream."""
        pieces: list[np.ndarray] = []
        stop = min(stop, len(self))
        index = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end = int(self._ends[index])
            first = end - len(self._parts[index])
            pieces.append(self._parts[index][start - first : min(stop, end) - first])
            start, index = end, index + 1
        joined = np.concatenate(pieces) if pieces else np.empty(0, np.uint16)
        return joined.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of three splits, any of which may be empty.

    A split is a concatenation of documents, each followed by the end-of-document token.

    Attributes:
        name: name of the corpus.
        vocabulary: vocabulary of the tokens.
        splits: token streams by the names in ``SPLITS``.

    """

    name: str
    vocabulary: Vocabulary
    splits: Mapping[str, TokenStream]


def tokenise(
    documents: Documents,
    *,
    tokenizer: str = "bytes",
    vocabulary_size: int = DEFAULT_BPE_SIZE,
    cache_dir: str | Path | None = None,
    definition: str | None = None,
) -> Corpus:
    """Tokenise documents, or read their tokens from the cache.

    Each rank reads all tokens into memory. Use shards for more than a few hundred million tokens.

    Args:
        documents: documents of all splits.
        tokenizer: ``"bytes"``, ``"bpe"`` (trained on the train split) or the path of a JSON file
            written by ``examples.language.write_shards``.
        vocabulary_size: number of tokens of a BPE that is trained.
        cache_dir: folder of the cache. None: no cache.
        definition: definition of a BPE, from a checkpoint, that replaces ``tokenizer``.

    Raises:
        ValueError: the train split is empty and a BPE must be trained, or the tokenizer does not
            fit.

    """
    cache_key = {
        "format": 1,
        "documents": documents.state,
        "tokenizer": tokenizer,
        "size": vocabulary_size if tokenizer == "bpe" else None,
    }
    if definition is None and tokenizer not in ("bytes", "bpe"):
        definition = read_bpe(tokenizer).definition
    if definition is not None:
        cache_key["definition"] = definition

    def compute() -> Arrays:
        texts = documents.read()
        if definition is None:
            vocabulary = _vocabulary(tokenizer, vocabulary_size, texts["train"])
        else:
            vocabulary = BPEVocabulary(definition)
        arrays = {split: join(vocabulary, texts[split]) for split in SPLITS}
        return {**arrays, "definition": as_json_array(definition_of(vocabulary))}

    arrays = cached_arrays(f"text-{documents.name}", cache_key, cache_dir, compute)
    cached_definition = from_json_array(arrays["definition"])
    return Corpus(
        name=documents.name,
        vocabulary=(
            ByteVocabulary() if cached_definition is None else BPEVocabulary(cached_definition)
        ),
        splits={split: TokenStream([arrays[split]]) for split in SPLITS},
    )


def join(vocabulary: Vocabulary, texts: Sequence[str]) -> np.ndarray:
    """Return the tokens of the documents, each followed by the end-of-document token."""
    end = np.array([vocabulary.end], vocabulary.dtype)
    pieces = [piece for text in texts for piece in (vocabulary.encode(text), end)]
    return np.concatenate(pieces) if pieces else np.empty(0, vocabulary.dtype)


def definition_of(vocabulary: Vocabulary) -> str | None:
    """Return the definition of a BPE in JSON, or None for bytes."""
    return vocabulary.definition if isinstance(vocabulary, BPEVocabulary) else None


def _vocabulary(tokenizer: str, size: int, train: Sequence[str]) -> Vocabulary:
    if tokenizer == "bytes":
        return ByteVocabulary()
    if not train:
        raise ValueError(
            "tokenizer='bpe' is trained on the train split, which is empty; give the checkpoint of "
            "a trained model (--ckpt_path) or the path of its tokenizer.json"
        )
    return BPEVocabulary.train(train, size=size)
