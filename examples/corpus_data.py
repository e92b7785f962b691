"""A corpus that a data module is given by name and arguments, and builds at the first use."""

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
    """A data module whose corpus is built at the first use.

    What was computed from the train split (:meth:`_fitted`: means and deviations, an alphabet) is
    in every checkpoint. Evaluation of a checkpoint takes it from there, so a corpus may then have
    nothing but the split that is evaluated.

    Attributes:
        fitted: what was computed from the train split, of the checkpoint that is evaluated or of
            the one that was written; empty without one.
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
        """Whether the Trainer trains; without a Trainer the corpus is one to train on, too."""
        return self.trainer is None or self.trainer.state.fn in (None, TrainerFn.FITTING)

    def setup(self, stage: str) -> None:
        """Build the corpus to train on.

        To evaluate it is built later: Lightning reads the checkpoint after this.
        """
        if self.is_fitting:
            _ = self.corpus

    def split(self, name: str) -> Any:
        """The split of this name.

        Raises:
            ValueError: the corpus has none; it says how to give one.
        """
        found = getattr(self.corpus, name)
        if not found:
            raise self._missing(name)
        return found

    def _missing(self, split: str) -> ValueError:
        """What to raise for a split that is not there."""
        message = f"the corpus has no {split} split; {self._split_hint(split)}"
        if split == "train" and not self.is_fitting:
            message += "; or give the checkpoint of a trained model (--ckpt_path)"
        return ValueError(message)

    def state_dict(self) -> dict[str, Any]:
        """What was computed from the train split."""
        if not self.fitted and self._corpus is not None:
            self.fitted = self._fitted(self._corpus)
        return self.fitted

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what was computed from the train split; training computes it anew."""
        if not self.is_fitting and not _equal(self.state_dict(), state_dict):
            self.fitted, self._corpus = state_dict, None

    @abstractmethod
    def _fitted(self, corpus: Corpus) -> dict[str, Any]:
        """What was computed from the train split, as tensors, numbers and texts."""

    @abstractmethod
    def _split_hint(self, split: str) -> str:
        """The arguments or files by which a user gives this split."""


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        for name, value in one.items()
    )
