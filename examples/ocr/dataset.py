"""A dataset that returns batches of lines."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import Dataset

from examples.ocr.alphabet import Alphabet
from examples.ocr.augmentation import Augmentation
from examples.ocr.line import Batch, Line, collate, frames_needed
from examples.rank_batches import BatchIndex


class LineDataset(Dataset[Batch]):
    """Lines of a split, indexed by the items of a ``LineBatchSampler``.

    Args:
        lines: lines of the split.
        alphabet: alphabet that contains all characters of the texts.
        augmentation: random distortion of the images, or None.
        pixels_per_frame: width of an output frame of the model in pixels. Augmentation does not
            make a line too narrow for the CTC loss of its text.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        alphabet: Alphabet,
        augmentation: Augmentation | None = None,
        pixels_per_frame: int = 1,
    ) -> None:
        self.lines = lines
        self.augmentation = augmentation
        self.targets = [alphabet.encode(line.text) for line in lines]
        self._min_widths = [frames_needed(t) * pixels_per_frame for t in self.targets]

    def __len__(self) -> int:
        """Number of lines of the split."""
        return len(self.lines)

    @property
    def widths(self) -> list[int]:
        """Width of each line in pixels, before augmentation."""
        return [line.width for line in self.lines]

    def __getitem__(self, index: BatchIndex) -> Batch:
        """Return the batch of the lines at ``index.positions``."""
        images = [self.lines[position].image for position in index.positions]
        if self.augmentation is not None:
            images = [
                self.augmentation(
                    image,
                    epoch=index.epoch,
                    position=position,
                    min_width=self._min_widths[position],
                )
                for image, position in zip(images, index.positions, strict=True)
            ]
        targets = [self.targets[position] for position in index.positions]
        return collate(images, targets, index.positions)
