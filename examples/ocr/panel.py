"""An image of recognised lines for TensorBoard, with references and hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image, ImageDraw, ImageFont

from examples.ocr.line import Batch

MARGIN = 4
FONT_SIZE = 14
RIGHT = (0, 110, 0)
WRONG = (180, 0, 0)
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)


class PanelLine(NamedTuple):
    """A line of the panel.

    Attributes:
        image: (H, W) uint8, dark ink on white paper.
        reference: reference text.
        hypothesis: recognised text.
    """

    image: np.ndarray
    reference: str
    hypothesis: str


class LinePanel(Callback):
    """Log an image of the first lines of validation and test as ``valid/lines``, ``test/lines``.

    Global rank 0 draws the image at the end of the split, from its own batches, without
    communication. Loggers whose experiment has no ``add_image`` are skipped.

    Args:
        lines: number of lines, at least 1.

    Raises:
        ValueError: if ``lines`` is less than 1.
    """

    def __init__(self, *, lines: int = 12) -> None:
        if lines < 1:
            raise ValueError(f"lines must be at least 1, got {lines}")
        self.lines = lines
        self._collected: list[PanelLine] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the lines of the previous validation."""
        self._collected = []

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the lines of the previous test."""
        self._collected = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *rest: Any
    ) -> None:
        """Collect lines of the batch, up to the number of lines of the panel."""
        self._collect(trainer, batch, outputs)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *rest: Any
    ) -> None:
        """Collect lines of the batch, up to the number of lines of the panel."""
        self._collect(trainer, batch, outputs)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw and log the panel."""
        self._log(trainer, "valid/lines")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw and log the panel."""
        self._log(trainer, "test/lines")

    def _collect(self, trainer: Trainer, batch: Batch, outputs: Any) -> None:
        if not trainer.is_global_zero or not self._experiments(trainer):
            return
        for row in range(min(len(batch.images), self.lines - len(self._collected))):
            ink = batch.images[row, 0, :, : int(batch.widths[row])].float().cpu().numpy()
            image = np.clip(255 * (1 - ink), 0, 255).round().astype(np.uint8)
            texts = (outputs[key][row] for key in ("references", "hypotheses"))
            self._collected.append(PanelLine(image, *texts))

    def _log(self, trainer: Trainer, name: str) -> None:
        if not self._collected or trainer.sanity_checking:
            return
        panel = draw_panel(self._collected)
        for experiment in self._experiments(trainer):
            experiment.add_image(name, panel, trainer.global_step, dataformats="HWC")

    @staticmethod
    def _experiments(trainer: Trainer) -> list[Any]:
        experiments = (getattr(logger, "experiment", None) for logger in trainer.loggers)
        return [each for each in experiments if callable(getattr(each, "add_image", None))]


def draw_panel(lines: Sequence[PanelLine]) -> np.ndarray:
    """Draw lines below each other, with their references and hypotheses.

    Correct hypotheses are green, wrong ones red.

    Args:
        lines: at least one line.

    Returns:
        Image (H, W, 3) uint8.
    """
    font = ImageFont.load_default(FONT_SIZE)
    strips = [draw_line(line, font) for line in lines]
    panel = Image.new("RGB", (max(s.width for s in strips), sum(s.height for s in strips)), WHITE)
    top = 0
    for strip in strips:
        panel.paste(strip, (0, top))
        top += strip.height
    return np.asarray(panel)


def draw_line(line: PanelLine, font: Any) -> Image.Image:
    """Draw the image of a line, with the reference and the hypothesis below it."""
    correct = line.hypothesis == line.reference
    texts = [(line.reference, BLACK), (line.hypothesis, RIGHT if correct else WRONG)]
    text_height = sum(font.getmetrics()) + MARGIN
    width = max(line.image.shape[1], *(int(font.getlength(text)) + 1 for text, _ in texts))
    height = line.image.shape[0] + len(texts) * text_height
    strip = Image.new("RGB", (width + 2 * MARGIN, height + 3 * MARGIN), WHITE)
    strip.paste(Image.fromarray(line.image), (MARGIN, MARGIN))
    pen = ImageDraw.Draw(strip)
    top = line.image.shape[0] + 2 * MARGIN
    for text, colour in texts:
        pen.text((MARGIN, top), text, fill=colour, font=font)
        top += text_height
    return strip
