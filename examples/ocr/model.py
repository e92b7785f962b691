"""DarkNet-DBLSTM, the character model of bmuf_adam 3.1, trained with CTC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.ocr.darknet import DarkNet, Downsampling, blank_padding
from examples.ocr.line_reader import LineReader, Unalignable
from examples.ocr.recurrent import BidirectionalLSTM


class DarkNetDBLSTM(LineReader):
    """Tiny DarkNet over line images, bidirectional LSTM layers, CTC over characters and blank.

    The defaults are those of the paper: images 60 pixels high, two layers of 128 + 128 cells, 95
    characters and blank. :meth:`small` builds a model that trains on one core.

    :class:`~examples.ocr.line_reader.LineReader` describes the logged values and the alphabet.

    Args:
        num_classes: C, number of characters plus blank. None: take it from the data.
        height: H, height of the images in pixels. None: take it from the data.
        channels: see :class:`~examples.ocr.darknet.DarkNet`, also for the next four arguments.
        convolutions: number of 3x3 convolutions of each stage.
        reductions: factors by which each stage reduces (height, width).
        downsampling: reduction by max pooling (``"pool"``) or by strides (``"stride"``).
        feature_channels: channels of a final 1x1 convolution. 0: no such convolution.
        cells: memory cells per layer and direction.
        layers: number of bidirectional layers.
        dropout: dropout probability before the output layer and each LSTM layer except the first.
        learning_rate: learning rate of Adam.
        beta1: first moment decay of Adam. The paper recommends 0.5 with block momentum, 0.9
            without.
        beta2: second moment decay of Adam.
        decay_epochs: epochs after which the learning rate is multiplied by ``decay_factor``.
        decay_factor: factor of the learning rate.
        unalignable: see :class:`~examples.ocr.line_reader.LineReader`.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        height: int | None = None,
        channels: Sequence[int] = (16, 32, 128, 256, 512),
        convolutions: Sequence[int] = (1, 1, 2, 2, 2),
        reductions: Sequence[Sequence[int]] = ((2, 2), (2, 2), (2, 2), (2, 1), (1, 1)),
        downsampling: Downsampling = "pool",
        feature_channels: int = 128,
        cells: int = 128,
        layers: int = 2,
        dropout: float = 0.0,
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        decay_epochs: Sequence[int] = (),
        decay_factor: float = 0.5,
        unalignable: Unalignable = "raise",
    ) -> None:
        super().__init__(unalignable=unalignable)
        if cells < 1 or layers < 1:
            raise ValueError(f"cells and layers must be at least 1, got {cells} and {layers}")
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.betas = (beta1, beta2)
        self.decay_epochs = tuple(decay_epochs)
        self.decay_factor = decay_factor
        self._darknet: dict[str, Any] = {
            "channels": channels,
            "convolutions": convolutions,
            "reductions": reductions,
            "downsampling": downsampling,
            "feature_channels": feature_channels,
        }
        self._lstm: dict[str, Any] = {"cells": cells, "layers": layers, "dropout": dropout}
        self.take_sizes(num_classes=num_classes, height=height)

    def _layers(self, num_classes: int, height: int) -> None:
        self.darknet = DarkNet(height=height, **self._darknet)
        self.lstm = BidirectionalLSTM(self.darknet.feature_dim, **self._lstm)
        self.dropout = nn.Dropout(self._lstm["dropout"])
        self.affine = nn.Linear(2 * self._lstm["cells"], num_classes)

    @classmethod
    def small(cls, *, num_classes: int = 96, height: int = 32, **options: Any) -> DarkNetDBLSTM:
        """Build a model that trains on one core: frames of 4 pixels, 2 layers of 64 + 64 cells.

        Args:
            num_classes: C, number of characters plus blank.
            height: H, height of the images in pixels. 24 to 40 are suitable.
            options: further arguments of the class. They override the values set here.
        """
        sizes: dict[str, Any] = {
            "channels": (16, 32, 64),
            "convolutions": (1, 1, 1),
            "reductions": ((2, 2), (2, 2), (2, 1)),
            "downsampling": "stride",
            "feature_channels": 0,
            "cells": 64,
        }
        return cls(num_classes=num_classes, height=height, **{**sizes, **options})

    @property
    def subsample(self) -> int:
        """Width of an output frame in pixels."""
        return self.darknet.subsample

    def forward(self, images: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log probabilities of all frames.

        Images are padded with paper to a whole number of frames.

        Args:
            images: (B, 1, H, W), from 0 (paper) to 1 (ink).
            widths: (B,) width of each line in pixels.

        Returns:
            The log probabilities (T, B, C), float32 or wider, with T = ceil(W / subsample); and
            the number of frames of each line (B,) int64, ceil(width / subsample). In evaluation
            mode, the outputs within the frames of a line depend only on the image of this line.

        Raises:
            ValueError: if images have a different height, or lines are narrower than one frame or
                wider than the batch.
        """
        self._check_images(images, widths)
        frames = -(-widths // self.subsample)
        padding = -images.shape[-1] % self.subsample
        images = functional.pad(blank_padding(images, widths), (0, padding))
        hidden = self.darknet(images, frames * self.subsample)
        logits = self.affine(self.dropout(self.lstm(hidden, frames)))
        # With mixed precision, the loss is computed in float32.
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return functional.log_softmax(wide, dim=-1), frames

    def configure_optimizers(self) -> Any:
        """Return Adam, with a learning rate that is reduced after each of ``decay_epochs``."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate, betas=self.betas)
        if not self.decay_epochs:
            return optimizer
        schedule = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, milestones=list(self.decay_epochs), gamma=self.decay_factor
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}

    def _check_images(self, images: Tensor, widths: Tensor) -> None:
        if images.dim() != 4 or images.shape[1] != 1 or images.shape[2] != self.height:
            raise ValueError(
                f"images must be (B, 1, {self.height}, W), got {tuple(images.shape)}; use the same "
                "height for the data module and the model"
            )
        narrowest, widest = int(widths.min()), int(widths.max())
        if narrowest < self.subsample or widest > images.shape[-1]:
            raise ValueError(
                f"widths must be from {self.subsample}, one frame, to the {images.shape[-1]} "
                f"pixels of the batch, got {narrowest} to {widest}"
            )
