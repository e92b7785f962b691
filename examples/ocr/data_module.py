"""The DataModule of the text line example, configured from a YAML file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from examples.ocr.alphabet import encode, frames_needed
from examples.ocr.lines import Batch, Line, LineBatchSampler, LineDataset
from examples.ocr.old_books import read_old_books
from examples.ocr.rendered import render_lines
from examples.rank_batches import rank_and_world_size, rank_loader

log = logging.getLogger(__name__)

PIXELS_PER_FRAME = 4
"""Width of an output frame of the model in pixels."""


class TextLines(LightningDataModule):
    """Lines of text, in batches of lines of similar width.

    Every rank has the same number of batches, which a ``LineBatchSampler`` creates. Set
    ``use_distributed_sampler=False`` in the Trainer, because the data module already distributes
    the batches.

    A line whose text needs more frames than the line has would have an infinite CTC loss. Such
    lines are excluded from every split, with a warning, and listed in ``too_long``.

    Args:
        corpus: ``"rendered"`` (``render_lines``) or ``"old_books"`` (``read_old_books``).
        corpus_args: arguments of that function, except the height.
        height: height of all images in pixels.
        batch_lines: maximum number of lines in a batch of one rank.
        augment: distort the images of the train split slightly, differently in each epoch.
        seed: seed of the order of the batches and of the augmentation.
        num_workers: number of processes that load batches.

    Attributes:
        too_long: names of the lines that are excluded because their texts need too many frames.
            Empty until the lines are read.
    """

    def __init__(
        self,
        corpus: Literal["rendered", "old_books"] = "rendered",
        corpus_args: dict[str, Any] | None = None,
        height: int = 32,
        batch_lines: int = 16,
        augment: bool = True,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.corpus = corpus
        self.corpus_args = corpus_args or {}
        self.height = height
        self.batch_lines = batch_lines
        self.augment = augment
        self.seed = seed
        self.num_workers = num_workers
        self.too_long: list[str] = []
        self.splits: dict[str, list[Line]] = {}

    def setup(self, stage: str) -> None:
        """Read or render the lines."""
        if self.splits:
            return
        read = render_lines if self.corpus == "rendered" else read_old_books
        splits = read(height=self.height, **self.corpus_args)
        self.splits = {name: self._alignable(lines) for name, lines in splits.items()}
        if self.too_long:
            rank_zero_only(log.warning)(
                "%d of %d lines left out, too narrow for CTC at %d pixels per frame: %s",
                len(self.too_long),
                sum(map(len, splits.values())),
                PIXELS_PER_FRAME,
                ", ".join(self.too_long[:20]),
            )

    def _alignable(self, lines: Sequence[Line]) -> list[Line]:
        """Return the lines that CTC can align, and add the others to ``too_long``."""
        kept = []
        for line in lines:
            if frames_needed(encode(line.text)) <= -(-line.width // PIXELS_PER_FRAME):
                kept.append(line)
            else:
                self.too_long.append(line.key)
        return kept

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a different order in each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader("valid")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this rank, in a fixed order."""
        return self._loader("test")

    def _loader(self, split: str, *, shuffle: bool = False) -> DataLoader[Batch]:
        lines = self.splits[split]
        rank, world_size = rank_and_world_size(self.trainer)
        sampler = LineBatchSampler(
            [line.width for line in lines],
            batch_lines=self.batch_lines,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            seed=self.seed,
        )
        dataset = LineDataset(lines, augment=self.augment and shuffle, seed=self.seed)
        return rank_loader(dataset, sampler, num_workers=self.num_workers)
