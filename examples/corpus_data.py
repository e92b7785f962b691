"""Base class of data modules that build a corpus from its name and arguments."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

import torch
from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

Corpus = TypeVar("Corpus")


def builder_of(builders: Mapping[str, Callable[..., Corpus]], corpus: str) -> Callable[..., Corpus]:
    """Return the function that builds the corpus of this name.

    Raises:
        ValueError: there is no such corpus. The error lists all names.
    """
    if corpus not in builders:
        raise ValueError(f"corpus must be one of {', '.join(builders)}, got {corpus!r}")
    return builders[corpus]


def check_arguments(
    corpus: str,
    builder: Callable[..., Any],
    arguments: Mapping[str, Any],
    internal: Collection[str] = (),
) -> None:
    """Check the arguments of a corpus.

    Args:
        corpus: name of the corpus.
        builder: function that builds it.
        arguments: arguments of the user.
        internal: parameters of the builder that the data module sets, not the user.

    Raises:
        ValueError: the arguments do not match the signature. The error lists valid ones.
    """
    signature = inspect.signature(builder)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"corpus_args of {corpus!r}: {error}; the arguments are "
            f"{', '.join(sorted(signature.parameters.keys() - set(internal)))}"
        ) from error


class CorpusData(LightningDataModule, ABC, Generic[Corpus]):
    """Data module that builds its corpus at the first use.

    Checkpoints contain the values that are computed from the train split (:meth:`_fitted`), such as
    means, standard deviations or an alphabet. Evaluation reads them from the checkpoint, so the
    corpus needs only the split that is evaluated.

    Attributes:
        fitted: values computed from the train split, of the last checkpoint that was loaded or
            saved. Empty if there is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._corpus: Corpus | None = None
        self.fitted: dict[str, Any] = {}

    @abstractmethod
    def _build(self) -> Corpus:
        """Build the corpus, or read it from a cache."""

    @property
    def corpus(self) -> Corpus:
        """The corpus, built at the first use."""
        if self._corpus is None:
            self._corpus = self._build()
        return self._corpus

    @property
    def is_fitting(self) -> bool:
        """Whether the Trainer trains. True without a Trainer."""
        return self.trainer is None or self.trainer.state.fn in (None, TrainerFn.FITTING)

    def setup(self, stage: str) -> None:
        """Build the corpus before training.

        In evaluation, it is built later, because Lightning loads the checkpoint after this call.
        """
        if self.is_fitting:
            _ = self.corpus

    def split(self, name: str) -> Any:
        """Return the split of this name.

        Raises:
            ValueError: the split is empty. The error explains how to provide it.
        """
        examples = getattr(self.corpus, name)
        if not examples:
            raise self._missing(name)
        return examples

    def _missing(self, split: str) -> ValueError:
        """Return the error for a missing split."""
        message = f"the corpus has no {split} split; {self._split_hint(split)}"
        if split == "train" and not self.is_fitting:
            message += "; or give the checkpoint of a trained model (--ckpt_path)"
        return ValueError(message)

    def state_dict(self) -> dict[str, Any]:
        """Return the values computed from the train split."""
        if not self.fitted and self._corpus is not None:
            self.fitted = self._fitted(self._corpus)
        return self.fitted

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Use the values of a checkpoint in evaluation. Training computes them again."""
        if not self.is_fitting and not _equal(self.state_dict(), state_dict):
            self.fitted, self._corpus = state_dict, None

    @abstractmethod
    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        """Return the values computed from the train split: tensors, numbers and strings."""

    @abstractmethod
    def _split_hint(self, split: str) -> str:
        """Return the arguments or files that provide this split, for an error message."""


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        for name, value in one.items()
    )
