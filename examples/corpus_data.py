"""A corpus that a data module is given by name and arguments, and builds at the first use."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from lightning import LightningDataModule

Corpus = TypeVar("Corpus")


def builder_of(builders: Mapping[str, Callable[..., Corpus]], corpus: str) -> Callable[..., Corpus]:
    """What builds the corpus of this name.

    Raises:
        ValueError: nothing does; the message lists what there is.
    """
    if corpus not in builders:
        raise ValueError(f"corpus must be one of {', '.join(builders)}, got {corpus!r}")
    return builders[corpus]


def check_arguments(
    corpus: str,
    builder: Callable[..., Any],
    arguments: Mapping[str, Any],
    own: Collection[str] = (),
) -> None:
    """Check what a corpus is to be built from.

    Args:
        corpus: its name.
        builder: what builds it.
        arguments: all that it will get.
        own: those of them that the data module gives, and the user does not.

    Raises:
        ValueError: the arguments do not fit; the message lists those that do.
    """
    signature = inspect.signature(builder)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"corpus_args of {corpus!r}: {error}; the arguments are "
            f"{', '.join(sorted(signature.parameters.keys() - set(own)))}"
        ) from error


class CorpusData(LightningDataModule, ABC, Generic[Corpus]):
    """A data module whose corpus is built at the first use."""

    def __init__(self) -> None:
        super().__init__()
        self._corpus: Corpus | None = None

    @abstractmethod
    def _build(self) -> Corpus:
        """Build the corpus, or read it from a cache."""

    @property
    def corpus(self) -> Corpus:
        """The corpus, built at the first use."""
        if self._corpus is None:
            self._corpus = self._build()
        return self._corpus

    def setup(self, stage: str) -> None:
        """Build the corpus."""
        _ = self.corpus
