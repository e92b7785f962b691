"""A line of text, and a padded batch of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text and its image.

    Attributes:
        key: name of the line, unique in its split.
        text: reference text.
        image: (H, W) uint8, from 0 (ink) to 255 (paper).
    """

    key: str
    text: str
    image: np.ndarray

    @property
    def width(self) -> int:
        """Width of the image in pixels."""
        return int(self.image.shape[1])


class Batch(NamedTuple):
    """A mini-batch of lines.

    Attributes:
        images: (B, 1, H, W) float32, from 0 (paper) to 1 (ink), padded with paper on the right.
        widths: (B,) int64, width of each image in pixels.
        targets: (B, L) int64, indices of the characters in the alphabet, padded with 0.
        target_lengths: (B,) int64, number of characters of each line.
        index: (B,) int64, position of each line in its split.
    """

    images: Tensor
    widths: Tensor
    targets: Tensor
    target_lengths: Tensor
    index: Tensor  # type: ignore[assignment]  # replaces tuple.index, which is not used


def collate(
    images: Sequence[np.ndarray], targets: Sequence[Sequence[int]], index: Sequence[int]
) -> Batch:
    """Pad images (H, W) uint8 and targets, and stack them to a batch.

    Raises:
        ValueError: if there is no image, the numbers of images, targets and indices differ, or the
            heights of images differ.
    """
    if not images or not len(images) == len(targets) == len(index):
        raise ValueError(
            "a batch needs at least one image, and one target and index for each, got "
            f"{len(images)} images, {len(targets)} targets and {len(index)} indices"
        )
    heights = {image.shape[0] for image in images}
    if len(heights) > 1:
        raise ValueError(f"all images of a batch must have one height, got {sorted(heights)}")
    widths = torch.tensor([image.shape[1] for image in images])
    lengths = torch.tensor([len(target) for target in targets])
    ink = torch.zeros(len(images), heights.pop(), int(widths.max()), dtype=torch.uint8)
    padded = torch.zeros(len(images), int(lengths.max()), dtype=torch.int64)
    for row, (image, target) in enumerate(zip(images, targets, strict=True)):
        ink[row, :, : image.shape[1]] = torch.from_numpy(255 - image)
        padded[row, : len(target)] = torch.tensor(target, dtype=torch.int64)
    return Batch(ink.unsqueeze(1).float().div_(255), widths, padded, lengths, torch.tensor(index))


def frames_needed(target: Sequence[int]) -> int:
    """Return the number of frames that CTC needs for the target.

    CTC needs one frame for each character, and a blank between two equal characters.
    """
    return len(target) + sum(first == second for first, second in pairwise(target))
