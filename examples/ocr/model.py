"""A small model of bmuf_adam 3.1's kind: convolutions, bidirectional LSTM layers, CTC."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.text import CharErrorRate, WordErrorRate

from examples.ocr.alphabet import BLANK, NUM_CLASSES, decode
from examples.ocr.data_module import PIXELS_PER_FRAME
from examples.ocr.lines import Batch

# Factors by which the convolutions reduce (height, width). Those of the width give a frame.
_STRIDES = ((2, 2), (2, 2), (2, 1))


class LineRecogniser(LightningModule):
    """Three strided convolutions, bidirectional LSTM layers, and CTC over the keyboard.

    The layers follow bmuf_adam 3.1, with fewer convolutions and cells, so that the model trains on
    one core.

    Logged values: ``train/loss`` of this rank, and ``valid/loss``, ``valid/cer``, ``valid/wer``,
    ``test/loss``, ``test/cer`` and ``test/wer`` over all lines and ranks. Losses are in nats per
    line, error rates those of best path decoding.

    Args:
        height: H, height of the images in pixels. 24 to 40 are suitable.
        channels: number of output channels of each convolution.
        cells: memory cells per layer and direction.
        layers: number of bidirectional layers.
        learning_rate: learning rate of Adam.
        beta1: first moment decay of Adam. The paper recommends 0.5 with block momentum, 0.9
            without.
        decay_epochs: epochs after which the learning rate is halved.
    """

    def __init__(
        self,
        *,
        height: int = 32,
        channels: Sequence[int] = (16, 32, 64),
        cells: int = 64,
        layers: int = 2,
        learning_rate: float = 3e-3,
        beta1: float = 0.9,
        decay_epochs: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.height = height
        self.learning_rate = learning_rate
        self.beta1 = beta1
        self.decay_epochs = tuple(decay_epochs)
        sizes = zip((1, *channels[:-1]), channels, _STRIDES, strict=True)
        self.convolutions = nn.ModuleList(_convolution(*each) for each in sizes)
        rows = -(-height // 8)
        self.lstm = BidirectionalLSTM(channels[-1] * rows, cells=cells, layers=layers)
        self.output = nn.Linear(2 * cells, NUM_CLASSES)
        self.metrics = nn.ModuleDict()
        for split in ("valid", "test"):
            # NaN losses stay visible.
            self.metrics[f"{split}/loss"] = MeanMetric(nan_strategy="disable")
            self.metrics[f"{split}/cer"] = CharErrorRate()
            self.metrics[f"{split}/wer"] = WordErrorRate()

    def forward(self, images: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log probabilities of all frames.

        Args:
            images: (B, 1, H, W), from 0 (paper) to 1 (ink).
            widths: (B,) width of each line in pixels.

        Returns:
            The log probabilities (T, B, C), float32 or wider, with T = ceil(W / 4); and the number
            of frames of each line (B,) int64, ceil(width / 4). In evaluation mode, the outputs
            within the frames of a line depend only on the image of this line.

        Raises:
            ValueError: if images have a different height.
        """
        if images.shape[2] != self.height:
            raise ValueError(
                f"images must be {self.height} pixels high, got {images.shape[2]}; use the same "
                "height for the data module and the model"
            )
        frames = -(-widths // PIXELS_PER_FRAME)
        hidden = functional.pad(blank_padding(images, widths), (0, -images.shape[3] % 4))
        columns = frames * PIXELS_PER_FRAME
        for convolution, (_, across) in zip(self.convolutions, _STRIDES, strict=True):
            hidden = convolution(blank_padding(hidden, columns))
            columns = columns // across
        logits = self.output(self.lstm(hidden.permute(3, 0, 1, 2).flatten(2), frames))
        # With mixed precision, the loss is computed in float32.
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return functional.log_softmax(wide, dim=-1), frames

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean CTC loss of the lines of the batch."""
        log_probs, frames = self(batch.images, batch.widths)
        loss = ctc_losses(log_probs, frames, batch).mean()
        self.log("train/loss", loss.detach(), batch_size=len(batch.widths))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the error rates."""
        self._evaluate(batch, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the loss and the error rates."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> list[str]:
        """Return the recognised texts of the batch."""
        return best_paths(*self(batch.images, batch.widths))

    def configure_optimizers(self) -> Any:
        """Return Adam, with a learning rate that is halved after each of ``decay_epochs``."""
        optimizer = torch.optim.Adam(
            self.parameters(), lr=self.learning_rate, betas=(self.beta1, 0.999)
        )
        schedule = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, milestones=list(self.decay_epochs), gamma=0.5
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}

    def _evaluate(self, batch: Batch, split: str) -> None:
        log_probs, frames = self(batch.images, batch.widths)
        texts = best_paths(log_probs, frames), references(batch)
        for name, values in (
            ("loss", (ctc_losses(log_probs, frames, batch),)),
            ("cer", texts),
            ("wer", texts),
        ):
            metric: Any = self.metrics[f"{split}/{name}"]
            metric.update(*values)
            self.log(f"{split}/{name}", metric, prog_bar=True, batch_size=len(frames))


class BidirectionalLSTM(nn.Module):
    """Stacked bidirectional LSTM layers, whose outputs do not depend on padding.

    The backward direction is a forward LSTM over sequences that are reversed within their lengths.
    Both directions therefore use dense tensors. On a CPU, this is more than twice as fast as packed
    sequences, with the same outputs within the lengths.

    Args:
        inputs: D, number of input features.
        cells: memory cells per layer and direction.
        layers: number of bidirectional layers.
    """

    def __init__(self, inputs: int, *, cells: int, layers: int) -> None:
        super().__init__()
        sizes = [inputs, *[2 * cells] * (layers - 1)]
        self.forwards = nn.ModuleList(nn.LSTM(size, cells) for size in sizes)
        self.backwards = nn.ModuleList(nn.LSTM(size, cells) for size in sizes)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Apply all layers to sequences (T, B, D) of ``lengths`` (B,), to (T, B, 2 * cells)."""
        position = torch.arange(len(hidden), device=hidden.device).unsqueeze(1)
        reverse = torch.where(position < lengths, lengths - 1 - position, position).unsqueeze(2)
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            future = backward(hidden.take_along_dim(reverse, 0))[0].take_along_dim(reverse, 0)
            hidden = torch.cat([forward(hidden)[0], future], dim=-1)
        return hidden


def blank_padding(hidden: Tensor, widths: Tensor) -> Tensor:
    """Return ``hidden`` (B, C, H, W) with zeros behind the columns of each line (B,)."""
    inside = torch.arange(hidden.shape[-1], device=hidden.device) < widths.unsqueeze(1)
    return hidden * inside[:, None, None, :].to(hidden.dtype)


def ctc_losses(log_probs: Tensor, frames: Tensor, batch: Batch) -> Tensor:
    """Return the CTC loss of each line in nats, (B,)."""
    lengths = batch.target_lengths
    return functional.ctc_loss(
        log_probs, batch.targets, frames, lengths, blank=BLANK, reduction="none"
    )


def best_paths(log_probs: Tensor, frames: Tensor) -> list[str]:
    """Return the text of the most probable output of each frame, for each line."""
    paths = log_probs.argmax(dim=-1).t().tolist()
    return [
        decode([output for output, _ in groupby(path[:length])])
        for path, length in zip(paths, frames.tolist(), strict=True)
    ]


def references(batch: Batch) -> list[str]:
    """Return the reference texts of a batch."""
    return [decode(target) for target in batch.targets.tolist()]


def _convolution(inputs: int, outputs: int, stride: tuple[int, int]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.1, inplace=True),
    )
