"""Tokens in three splits, made from documents once and kept in a cache."""

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
    """Tokens one after the other, in one or several arrays that stay where they are.

    Args:
        parts: (N,) arrays of unsigned integers, in memory or mapped.
    """

    def __init__(self, parts: Iterable[np.ndarray]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)

    def __len__(self) -> int:
        """Number of tokens."""
        return int(self._ends[-1]) if self._parts else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens from ``start`` to before ``stop`` as int64; fewer where the stream ends."""
        pieces: list[np.ndarray] = []
        stop = min(stop, len(self))
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end = int(self._ends[number])
            first = end - len(self._parts[number])
            pieces.append(self._parts[number][start - first : min(stop, end) - first])
            start, number = end, number + 1
        joined = np.concatenate(pieces) if pieces else np.empty(0, np.uint16)
        return joined.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of three splits, any of which may be empty.

    Each split is a row of documents, each with the end-of-document token after it.

    Attributes:
        name: of the corpus.
        vocabulary: of the tokens.
        splits: by the names in ``SPLITS``.
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
    """Tokens of documents, from the cache where they have been made before.

    They are read into the memory of each rank; for more than a few hundred million, write shards.

    Args:
        documents: of all splits.
        tokenizer: ``"bytes"``, ``"bpe"`` (trained on the train split) or the path of a JSON file
            that ``examples.language.write_shards`` has written.
        vocabulary_size: of a BPE that is trained.
        cache_dir: folder of the cache; None makes everything anew.
        definition: of the BPE to use instead, as a checkpoint holds it.

    Raises:
        ValueError: a BPE is to be trained without a train split, or the tokenizer does not fit.
    """
    made_from = {
        "format": 1,
        "documents": documents.state,
        "tokenizer": tokenizer,
        "size": vocabulary_size if tokenizer == "bpe" else None,
    }
    if definition is None and tokenizer not in ("bytes", "bpe"):
        definition = read_bpe(tokenizer).definition
    if definition is not None:
        made_from["definition"] = definition

    def make() -> Arrays:
        texts = documents.read()
        if definition is None:
            vocabulary = _vocabulary(tokenizer, vocabulary_size, texts["train"])
        else:
            vocabulary = BPEVocabulary(definition)
        arrays = {split: join(vocabulary, texts[split]) for split in SPLITS}
        return {**arrays, "definition": as_json_array(definition_of(vocabulary))}

    arrays = cached_arrays(f"text-{documents.name}", made_from, cache_dir, make)
    found = from_json_array(arrays["definition"])
    return Corpus(
        name=documents.name,
        vocabulary=ByteVocabulary() if found is None else BPEVocabulary(found),
        splits={split: TokenStream([arrays[split]]) for split in SPLITS},
    )


def join(vocabulary: Vocabulary, texts: Sequence[str]) -> np.ndarray:
    """Tokens of the documents, each with the end-of-document token after it."""
    end = np.array([vocabulary.end], vocabulary.dtype)
    pieces = [piece for text in texts for piece in (vocabulary.encode(text), end)]
    return np.concatenate(pieces) if pieces else np.empty(0, vocabulary.dtype)


def definition_of(vocabulary: Vocabulary) -> str | None:
    """Of a BPE, as a text; None for bytes."""
    return vocabulary.definition if isinstance(vocabulary, BPEVocabulary) else None


def _vocabulary(tokenizer: str, size: int, train: Sequence[str]) -> Vocabulary:
    if tokenizer == "bytes":
        return ByteVocabulary()
    if not train:
        raise ValueError(
            "tokenizer='bpe' is trained on the train split, which is empty; give the checkpoint of "
            "a trained model (--ckpt_path), or the path of its tokenizer.json"
        )
    return BPEVocabulary.train(train, size=size)
