"""Corpus of utterances at the frame rate of the model, and padded batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from examples.acoustic.features import Normalisation, stacked_targets
from examples.acoustic.fitted import Fitted
from examples.acoustic.lexicon import Lexicon, SenoneMap

# The default ignore_index of torch's cross entropy.
PADDING_TARGET = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Utterance:
    """An utterance at the frame rate of the model.

    Attributes:
        key: name of the utterance, unique in its corpus.
        speaker: name of the speaker.
        features: (T, D) float32, normalised features.
        words: transcript.
        senones: (T,) int64, target of each frame, or None without an alignment.
    """

    key: str
    speaker: str
    features: Tensor
    words: tuple[str, ...]
    senones: Tensor | None

    def __len__(self) -> int:
        """Return the number of frames."""
        return int(self.features.shape[0])


class Batch(NamedTuple):
    """Utterances of one step, padded with zeros at the end.

    Attributes:
        features: (B, T, D) float32, features.
        targets: (B, T) int64, targets. Those of padding and of utterances without alignment are
            ``PADDING_TARGET``.
        lengths: (B,) int64, number of frames of each utterance.
        index: (B,) int64, position of each utterance in its split.
    """

    features: Tensor
    targets: Tensor
    lengths: Tensor
    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which is not used


def collate(utterances: Sequence[Utterance], index: Sequence[int]) -> Batch:
    """Pad utterances to the length of the longest one.

    Args:
        utterances: utterances of the batch.
        index: position of each utterance in its split.

    """
    lengths = torch.tensor([len(utterance) for utterance in utterances])
    longest = int(lengths.max())
    features = torch.zeros(len(utterances), longest, utterances[0].features.shape[1])
    targets = torch.full((len(utterances), longest), PADDING_TARGET)
    for row, utterance in enumerate(utterances):
        features[row, : len(utterance)] = utterance.features
        if utterance.senones is not None:
            targets[row, : len(utterance)] = utterance.senones
    return Batch(features, targets, lengths, torch.tensor(list(index)))


class UtteranceDataset(Dataset[Batch]):
    """Utterances of a split, whose items are batches.

    Args:
        utterances: utterances of the split.
        selected: positions of the utterances of this data set. None: all utterances. The ``index``
            of batches contains positions in the split.
    """

    def __init__(
        self, utterances: Sequence[Utterance], selected: Sequence[int] | None = None
    ) -> None:
        self.utterances = utterances
        self.selected = range(len(utterances)) if selected is None else selected

    @property
    def lengths(self) -> list[int]:
        """Number of frames of each utterance."""
        return [len(self.utterances[position]) for position in self.selected]

    def __len__(self) -> int:
        """Return the number of utterances."""
        return len(self.selected)

    def __getitem__(self, index: Sequence[int]) -> Batch:
        """Return a batch of the utterances at these indices."""
        positions = [self.selected[i] for i in index]
        return collate([self.utterances[position] for position in positions], positions)


@dataclass(kw_only=True)
class Corpus:
    """Utterances in up to three splits, with senones, lexicon and normalisation.

    Attributes:
        name: name of the corpus.
        train, valid, test: utterances, normalised and at the frame rate of the model. A split may
            be empty.
        senones: numbering of the targets.
        lexicon: pronunciations of every word.
        feature_dim: number of features of a frame of the model, D.
        recorded: normalised features of each utterance by key, (T, D / 3), at the frame rate of the
            recording (100 frames per second).
        normalisation: normalisation of all features, or None if each speaker has its own.
        transcripts: words of the training utterances of the model.
    """

    name: str
    train: list[Utterance]
    valid: list[Utterance]
    test: list[Utterance]
    senones: SenoneMap
    lexicon: Lexicon
    feature_dim: int
    recorded: dict[str, Tensor]
    normalisation: Normalisation | None
    transcripts: tuple[tuple[str, ...], ...]

    @property
    def fitted(self) -> Fitted:
        """Values for the evaluation of a model that was trained on this corpus."""
        return Fitted(
            senones=self.senones,
            lexicon=self.lexicon,
            normalisation=self.normalisation,
            transcripts=self.transcripts,
        )

    @property
    def splits(self) -> dict[str, list[Utterance]]:
        """Utterances of each split, by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def is_aligned(self) -> bool:
        """Whether any utterance has targets."""
        return any(each.senones is not None for split in self.splits.values() for each in split)

    def with_alignments(self, alignments: Mapping[str, Tensor]) -> Corpus:
        """Return this corpus with new targets.

        Args:
            alignments: int64 senones of each utterance by key, at the frame rate of the recording.
                Targets are the senones of the centre frames. Other utterances have no targets.

        """
        train, valid, test = (
            [
                replace(each, senones=stacked_targets(alignments[each.key]))
                if each.key in alignments
                else each
                for each in split
            ]
            for split in self.splits.values()
        )
        return replace(self, train=train, valid=valid, test=test)
