"""Lines of text, their batches, and the distribution of batches among ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from torchvision.transforms import v2

from examples.ocr.alphabet import encode
from examples.rank_batches import BatchIndex, EvenSampler

PAPER = 255

# Shuffling changes the order of lines only if their widths differ by less than this factor.
_BUCKET_WIDTH = 1.2

DISTORTION = v2.Compose(
    [
        v2.RandomAffine(degrees=0, shear=(-8.0, 8.0), scale=(0.85, 1.0), fill=float(PAPER)),
        v2.ColorJitter(brightness=(0.8, 1.0), contrast=(0.7, 1.0)),
        v2.RandomApply([v2.GaussianBlur(3, (0.1, 0.6))]),
    ]
)
"""Slant, size, brightness, contrast and blur of training images. The width does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text and its image.

    Attributes:
        key: name of the line.
        text: reference text.
        image: (1, H, W) uint8, from 0 (ink) to 255 (paper).
    """

    key: str
    text: str
    image: Tensor

    @property
    def width(self) -> int:
        """Width of the image in pixels."""
        return int(self.image.shape[2])


class Batch(NamedTuple):
    """A mini-batch of lines.

    Attributes:
        images: (B, 1, H, W) float32, from 0 (paper) to 1 (ink), padded with paper on the right.
        widths: (B,) int64, width of each image in pixels.
        targets: (B, L) int64, indices of the characters, padded with 0.
        target_lengths: (B,) int64, number of characters of each line.
    """

    images: Tensor
    widths: Tensor
    targets: Tensor
    target_lengths: Tensor


def to_height(grey: Image.Image, height: int) -> Tensor:
    """Return the image (mode "L") with ``height`` rows and the same aspect ratio, (1, H, W)."""
    width = max(1, round(grey.width * height / grey.height))
    # The filter of Pillow grows with the reduction, so that thin strokes become grey.
    scaled = grey.resize((width, height), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(scaled)).unsqueeze(0)


class LineDataset(Dataset[Batch]):
    """Lines of a split, indexed by the items of a ``LineBatchSampler``.

    Args:
        lines: lines of the split.
        augment: whether to distort the images, differently in each epoch.
        seed: seed of the distortion.
    """

    def __init__(self, lines: Sequence[Line], *, augment: bool = False, seed: int = 0) -> None:
        self.lines = lines
        self._augment = augment
        self._seed = seed
        self._targets = [torch.tensor(encode(line.text)) for line in lines]

    def __len__(self) -> int:
        """Number of lines of the split."""
        return len(self.lines)

    def __getitem__(self, index: BatchIndex) -> Batch:
        """Return the batch of the lines at ``index.positions``."""
        images = [self.lines[position].image for position in index.positions]
        if self._augment:
            # Distortion depends only on (seed, epoch, lines), so that a resumed run repeats it.
            state = np.random.SeedSequence([self._seed, index.epoch, index.positions[0]])
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(state.generate_state(1)[0]))
                images = [DISTORTION(image) for image in images]
        targets = [self._targets[position] for position in index.positions]
        widths = torch.tensor([image.shape[2] for image in images])
        columns = [(PAPER - image).permute(2, 0, 1) for image in images]
        return Batch(
            pad_sequence(columns, batch_first=True).permute(0, 2, 3, 1).float() / PAPER,
            widths,
            pad_sequence(targets, batch_first=True),
            torch.tensor([len(target) for target in targets]),
        )


class LineBatchSampler(EvenSampler):
    """Yields the batches of one rank: lines of similar width, of which none is dropped.

    All ranks have batches of similar widths in the same step, so that they finish it at about the
    same time. Shuffling changes the order of lines of similar width, the order of the steps, and
    the assignment of batches to ranks. It depends only on (seed, epoch).

    Args:
        widths: width of each line in pixels.
        batch_lines: maximum number of lines in a batch of one rank.
        options: further arguments of :class:`~examples.rank_batches.StepSampler`.

    Raises:
        ValueError: if a number is out of range, or there are fewer lines than batches.
    """

    def __init__(self, widths: Sequence[int], *, batch_lines: int = 16, **options: Any) -> None:
        super().__init__(len(widths), batch_items=batch_lines, **options)
        self._log_widths = np.log(np.asarray(widths, dtype=np.float64))

    def _order(self, draw: np.random.Generator | None) -> np.ndarray:
        keys = self._log_widths
        if draw is not None:
            keys = keys + draw.uniform(0, math.log(_BUCKET_WIDTH), len(keys))
        return np.argsort(keys, kind="stable")

    def _item(self, batch: np.ndarray) -> BatchIndex:
        return BatchIndex(self.epoch, tuple(batch.tolist()))
