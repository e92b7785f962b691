"""One utterance, and a padded batch of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# What torch's cross entropy ignores by default, so that padding never reaches a loss.
PADDING_TARGET = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class Utterance:
    """One utterance as the model sees it.

    Attributes:
        key: name, unique in its corpus.
        speaker: name of the speaker.
        features: (T, D) float32, normalised, at the model's frame rate.
        words: what was said.
        senones: (T,) int64 target per frame, or None until an alignment exists.
    """

    key: str
    speaker: str
    features: Tensor
    words: tuple[str, ...]
    senones: Tensor | None

    def __len__(self) -> int:
        """Frames of the utterance."""
        return int(self.features.shape[0])


class Batch(NamedTuple):
    """Utterances of one step, zero padded at the end.

    Attributes:
        features: (B, T, D) float32.
        targets: (B, T) int64, ``PADDING_TARGET`` where there is no frame or no alignment.
        lengths: (B,) int64, frames of each utterance.
        index: (B,) int64, position of each utterance in the list of its split.
    """

    features: Tensor
    targets: Tensor
    lengths: Tensor
    index: Tensor  # type: ignore[assignment]  # in the place of tuple.index, which nobody needs


def collate(utterances: Sequence[Utterance], index: Sequence[int]) -> Batch:
    """Pad ``utterances`` to the longest of them; ``index`` says where each stands in its split.

    Raises:
        ValueError: if there is no utterance, or not one index for each.
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
