"""Vocabularies of tokens: bytes, or byte-level BPE."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np

END_OF_DOCUMENT = "<|end_of_document|>"


class Vocabulary(ABC):
    """A set of tokens, with the conversion from text to tokens.

    Attributes:
        size: number of tokens.
        end: end-of-document token.
        token_bytes: (size,) int64, number of UTF-8 bytes of each token, 0 for ``end``.

    """

    size: int
    end: int
    token_bytes: np.ndarray

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest dtype that represents all tokens."""
        return np.uint16 if self.size <= 2**16 else np.uint32

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of one document, without ``end``."""


class ByteVocabulary(Vocabulary):
    """The 256 values of a byte, and the end-of-document token 256."""

    def __init__(self) -> None:
        self.size = 257
        self.end = 256
        self.token_bytes = np.array([1] * 256 + [0], dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        """Return the bytes of the text in UTF-8."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(self.dtype)


class BPEVocabulary(Vocabulary):
    """Byte-level BPE of the ``tokenizers`` package. It encodes every text without loss.

    Args:
        definition: a tokenizer in the JSON format of that package.

    Raises:
        ValueError: it is not a byte-level tokenizer with an end-of-document token.

    """

    def __init__(self, definition: str) -> None:
        from tokenizers import Tokenizer  # only needed for BPE

        try:
            self._tokenizer = Tokenizer.from_str(definition)
        except Exception as error:  # the package has no narrower exception
            raise ValueError(f"no tokenizer in the JSON of `tokenizers`: {error}") from error
        end = self._tokenizer.token_to_id(END_OF_DOCUMENT)
        if end is None:
            raise ValueError(
                f"the tokenizer must have a token {END_OF_DOCUMENT}; those that "
                "examples.language trains have it"
            )
        self.definition = definition
        self.end = int(end)
        self.size = self._tokenizer.get_vocab_size()
        # A byte-level tokenizer represents each byte by one character.
        texts = (self._tokenizer.id_to_token(token) for token in range(self.size))
        self.token_bytes = np.array(
            [0 if token == self.end else len(text or "") for token, text in enumerate(texts)],
            dtype=np.int64,
        )

    @classmethod
    def train(cls, texts: Iterable[str], *, size: int) -> BPEVocabulary:
        """Train a BPE on documents.

        Args:
            texts: documents of the train split.
            size: maximum number of tokens, including the 256 bytes and the end-of-document token.
                The vocabulary is smaller if the texts have too few pairs to merge.

        Raises:
            ValueError: ``size`` is below 257.

        """
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        if size < 257:
            raise ValueError(f"a BPE has at least 257 tokens, got vocabulary_size={size}")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[END_OF_DOCUMENT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer.to_str())

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of the text.

        Raises:
            ValueError: the tokens do not represent all bytes of the text, or the text contains the
                end-of-document token.

        """
        tokens = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, self.dtype)
        encoded, expected = int(self.token_bytes[tokens].sum()), len(text.encode())
        if encoded != expected:
            raise ValueError(
                f"the tokens of a text of {expected} bytes represent {encoded} bytes: the "
                f"tokenizer must be byte-level, and the text without {END_OF_DOCUMENT}"
            )
        return tokens
