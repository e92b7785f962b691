"""Tokens and the bytes that each stands for: bytes themselves, or a trained BPE."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

END_OF_DOCUMENT = "<|end_of_document|>"


class Vocabulary(ABC):
    """What turns text into tokens and back.

    Attributes:
        size: number of tokens.
        end: the token after each document.
        token_bytes: (size,) int64, UTF-8 bytes that each token stands for; 0 for ``end``. None
            where nobody knows.
    """

    size: int
    end: int
    token_bytes: np.ndarray | None

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest dtype that holds all tokens."""
        return np.uint16 if self.size <= 2**16 else np.uint32

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Tokens of one document, without ``end``."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; bytes that are no UTF-8 are replaced."""


class ByteVocabulary(Vocabulary):
    """The 256 values of a byte, and the end of a document as token 256."""

    token_bytes: np.ndarray

    def __init__(self) -> None:
        self.size = 257
        self.end = 256
        self.token_bytes = np.array([1] * 256 + [0], dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        """Bytes of the text in UTF-8."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(self.dtype)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the bytes; the end of a document becomes an empty line."""
        return b"".join(b"\n\n" if t == self.end else bytes([t]) for t in tokens).decode(
            errors="replace"
        )


class BPEVocabulary(Vocabulary):
    """Byte-level BPE by the ``tokenizers`` package; every text can be encoded, without loss.

    Args:
        definition: a tokenizer in the JSON of that package.

    Raises:
        ValueError: it is no byte-level tokenizer with a token for the end of a document.
    """

    token_bytes: np.ndarray

    def __init__(self, definition: str) -> None:
        from tokenizers import Tokenizer  # for this vocabulary alone

        try:
            self._tokenizer = Tokenizer.from_str(definition)
        except Exception as error:  # the package raises nothing narrower
            raise ValueError(f"no tokenizer in the JSON of `tokenizers`: {error}") from error
        end = self._tokenizer.token_to_id(END_OF_DOCUMENT)
        if end is None:
            raise ValueError(
                f"the tokenizer must have a token {END_OF_DOCUMENT}; those that "
                "examples.language trains and writes have it"
            )
        self.definition = definition
        self.end = int(end)
        self.size = self._tokenizer.get_vocab_size()
        # A byte-level tokenizer writes each byte as one character.
        written = (self._tokenizer.id_to_token(token) for token in range(self.size))
        self.token_bytes = np.array(
            [0 if token == self.end else len(text or "") for token, text in enumerate(written)],
            dtype=np.int64,
        )

    @classmethod
    def train(cls, texts: Iterable[str], *, size: int) -> BPEVocabulary:
        """Train on documents.

        Args:
            texts: of the train split.
            size: tokens, of which 256 are bytes and one is the end of a document; fewer where the
                texts have no more pairs to merge.

        Raises:
            ValueError: ``size`` below 257.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        if size < 257:
            raise ValueError(f"a BPE has at least 257 tokens, got vocabulary_size={size}")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[END_OF_DOCUMENT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer.to_str())

    def encode(self, text: str) -> np.ndarray:
        """Tokens of the text.

        Raises:
            ValueError: the tokens do not stand for all bytes of the text, or the text itself has
                the mark of a document's end.
        """
        tokens = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, self.dtype)
        counted, wanted = int(self.token_bytes[tokens].sum()), len(text.encode())
        if counted != wanted:
            raise ValueError(
                f"the tokens of a text of {wanted} bytes stand for {counted}: the tokenizer must "
                f"be byte-level, and the text without {END_OF_DOCUMENT}"
            )
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens; the end of a document becomes an empty line."""
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return str(text).replace(END_OF_DOCUMENT, "\n\n")


class UnknownVocabulary(Vocabulary):
    """Tokens of shards that came without a tokenizer: numbers, of which only the count is known.

    Args:
        size: number of tokens.
        token_bytes: see :class:`Vocabulary`.
    """

    def __init__(self, size: int, token_bytes: np.ndarray | None = None) -> None:
        self.size = size
        self.end = size - 1
        self.token_bytes = token_bytes

    def encode(self, text: str) -> np.ndarray:
        """Raise: there is no tokenizer.

        Raises:
            ValueError: always.
        """
        raise ValueError("text needs a tokenizer, and these shards came without one")

    def decode(self, tokens: Sequence[int]) -> str:
        """The numbers of the tokens."""
        return " ".join(map(str, tokens))


def read_bpe(path: str | Path) -> BPEVocabulary:
    """Read a tokenizer that was written as JSON.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has no byte-level BPE; the file is named.
    """
    try:
        return BPEVocabulary(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
