"""Pre-tokenised shards, written by ``examples.language.write_shards``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples.language.corpus import Corpus, TokenStream
from examples.language.shards import map_shard
from examples.language.vocabulary import (
    ByteVocabulary,
    UnknownVocabulary,
    Vocabulary,
    read_bpe,
)


def build_shards_corpus(
    *,
    train: Sequence[str] = (),
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    tokenizer: str | None = None,
    vocabulary_size: int | None = None,
    token_bytes: str | None = None,
) -> Corpus:
    """Map the shards of each split into memory, and concatenate them in the order of the list.

    The vocabulary is defined by either ``tokenizer`` or ``vocabulary_size``. Without ``tokenizer``
    and ``token_bytes``, bits per byte are not computed.

    Args:
        train, valid, test: paths of ``.bin`` files. File names may contain ``*`` and ``?``.
        tokenizer: ``"bytes"``, or the path of a ``tokenizer.json``.
        vocabulary_size: number of tokens, if there is no tokenizer. The largest token is the
            end-of-document token.
        token_bytes: path of a NumPy file (.npy) of ``vocabulary_size`` integers, the number of
            bytes of each token.

    Raises:
        FileNotFoundError: a path matches no file.
        ValueError: a file is not a shard, or the arguments do not fit.

    """
    vocabulary = _vocabulary(tokenizer, vocabulary_size, token_bytes)
    paths = {"train": train, "valid": valid, "test": test}
    splits = {
        split: TokenStream(map(map_shard, _find(patterns))) for split, patterns in paths.items()
    }
    return Corpus(name="shards", vocabulary=vocabulary, splits=splits)


def _find(patterns: Sequence[str]) -> list[Path]:
    if isinstance(patterns, str):
        raise ValueError(
            f"each split must be a list of paths, got {patterns!r}; write [{patterns!r}]"
        )
    files: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        matches = sorted(path.parent.glob(path.name))
        if not matches:
            raise FileNotFoundError(f"no shard {pattern}")
        files += matches
    return files


def _vocabulary(tokenizer: str | None, size: int | None, token_bytes: str | None) -> Vocabulary:
    if (tokenizer is None) == (size is None):
        raise ValueError(
            "shards take either tokenizer or vocabulary_size, got "
            f"tokenizer={tokenizer!r} and vocabulary_size={size}"
        )
    if tokenizer is not None:
        if token_bytes is not None:
            raise ValueError(
                "token_bytes requires vocabulary_size; omit it, because the tokenizer defines it"
            )
        return ByteVocabulary() if tokenizer == "bytes" else read_bpe(tokenizer)
    assert size is not None
    if size < 1:
        raise ValueError(f"vocabulary_size must be at least 1, got {size}")
    if token_bytes is None:
        return UnknownVocabulary(size)
    lengths = np.load(token_bytes, allow_pickle=False).astype(np.int64)
    if lengths.shape != (size,):
        raise ValueError(
            f"{token_bytes} must hold vocabulary_size={size} integers, got shape {lengths.shape}"
        )
    return UnknownVocabulary(size, lengths)
