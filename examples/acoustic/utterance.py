"""Utterances and padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

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

    Raises:
        ValueError: there is no utterance, or the number of indices is different.
    """
    if not utterances or len(utterances) != len(index):
        raise ValueError(
            "a batch needs at least one utterance and one index for each, got "
            f"{len(utterances)} utterances and {len(index)} indices"
        )
    lengths = torch.tensor([len(utterance) for utterance in utterances])
    longest = int(lengths.max())
    dimension = utterances[0].features.shape[1]
    features = torch.zeros(len(utterances), longest, dimension)
    targets = torch.full((len(utterances), longest), PADDING_TARGET)
    for row, utterance in enumerate(utterances):
        features[row, : len(utterance)] = utterance.features
        if utterance.senones is not None:
            targets[row, : len(utterance)] = utterance.senones
    return Batch(features, targets, lengths, torch.tensor(list(index)))
