"""Tokens of three splits, tokenised with a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array
from examples.language.documents import SPLITS, Documents
from examples.language.vocabulary import BPEVocabulary, ByteVocabulary, Vocabulary

DEFAULT_BPE_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of three splits, any of which may be empty.

    A split is a concatenation of documents, each followed by the end-of-document token.

    Attributes:
        name: name of the corpus.
        vocabulary: vocabulary of the tokens.
        splits: (N,) tokens by the names in ``SPLITS``.

    """

    name: str
    vocabulary: Vocabulary
    splits: Mapping[str, np.ndarray]


def tokenise(
    documents: Documents,
    *,
    tokenizer: str = "bytes",
    vocabulary_size: int = DEFAULT_BPE_SIZE,
    cache_dir: str | Path | None = None,
    definition: str | None = None,
) -> Corpus:
    """Tokenise documents, or read their tokens from the cache.

    Each rank reads all tokens into memory.

    Args:
        documents: documents of all splits.
        tokenizer: ``"bytes"``, or ``"bpe"`` (trained on the train split).
        vocabulary_size: number of tokens of a BPE that is trained.
        cache_dir: folder of the cache. None: no cache.
        definition: definition of a BPE, from a checkpoint, that replaces ``tokenizer``.

    Raises:
        ValueError: the tokenizer is unknown, or the train split is empty and a BPE must be trained.

    """
    if tokenizer not in ("bytes", "bpe"):
        raise ValueError(f"tokenizer must be 'bytes' or 'bpe', got {tokenizer!r}")
    cache_key = {
        "format": 1,
        "documents": documents.state,
        "tokenizer": tokenizer,
        "size": vocabulary_size if tokenizer == "bpe" else None,
    }
    if definition is not None:
        cache_key["definition"] = definition

    def compute() -> Arrays:
        texts = documents.read()
        if definition is None:
            vocabulary = _vocabulary(tokenizer, vocabulary_size, texts["train"])
        else:
            vocabulary = BPEVocabulary(definition)
        arrays = {split: _join(vocabulary, texts[split]) for split in SPLITS}
        return {**arrays, "definition": as_json_array(definition_of(vocabulary))}

    arrays = cached_arrays(f"text-{documents.name}", cache_key, cache_dir, compute)
    cached_definition = from_json_array(arrays["definition"])
    return Corpus(
        name=documents.name,
        vocabulary=(
            ByteVocabulary() if cached_definition is None else BPEVocabulary(cached_definition)
        ),
        splits={split: arrays[split] for split in SPLITS},
    )


def definition_of(vocabulary: Vocabulary) -> str | None:
    """Return the definition of a BPE in JSON, or None for bytes."""
    return vocabulary.definition if isinstance(vocabulary, BPEVocabulary) else None


def _join(vocabulary: Vocabulary, texts: Sequence[str]) -> np.ndarray:
    """Return the tokens of the documents, each followed by the end-of-document token."""
    end = np.array([vocabulary.end], vocabulary.dtype)
    pieces = [piece for text in texts for piece in (vocabulary.encode(text), end)]
    return np.concatenate(pieces) if pieces else np.empty(0, vocabulary.dtype)


def _vocabulary(tokenizer: str, size: int, train: Sequence[str]) -> Vocabulary:
    if tokenizer == "bytes":
        return ByteVocabulary()
    if not train:
        raise ValueError(
            "tokenizer='bpe' is trained on the train split, which is empty; give the checkpoint of "
            "a trained model (--ckpt_path)"
        )
    return BPEVocabulary.train(train, size=size)
