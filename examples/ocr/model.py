"""DarkNet-DBLSTM, the character model of bmuf_adam 3.1: line images to characters by CTC."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypedDict, get_args

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanMetric
from torchmetrics.text import CharErrorRate, WordErrorRate

from examples.ocr.alphabet import Alphabet
from examples.ocr.ctc import ctc_losses, frames_of_batch
from examples.ocr.darknet import DarkNet, Downsampling, blank_padding
from examples.ocr.decoding.best_path import best_paths
from examples.ocr.line import Batch
from examples.ocr.recurrent import BidirectionalLSTM

Unalignable = Literal["raise", "skip"]


class LineDecoder(Protocol):
    """Whatever turns the outputs of one line into text."""

    def decode(self, log_probs: Tensor) -> str:
        """Return the text of (T, C) float32 log probabilities on the CPU."""
        ...


class Recognised(TypedDict):
    """What a validation or test step returns: the texts of its batch, line by line."""

    references: list[str]
    hypotheses: list[str]


def average() -> MeanMetric:
    """Average over lines and ranks; one that is not a number stays visible."""
    return MeanMetric(nan_strategy="disable")


class DarkNetDBLSTM(LightningModule):
    """Tiny DarkNet over line images, bidirectional LSTM layers, CTC over characters and blank.

    The defaults are the size of the paper: images 60 pixels high, two layers of 128 + 128 cells,
    95 characters and blank. :meth:`small` is a size for one core.

    Logged: ``train/loss``, ``valid/loss``, ``valid/cer``, ``valid/wer``, ``test/loss``,
    ``test/cer``, ``test/wer``, over all lines and ranks; losses in nats per line; with a
    :attr:`decoder` also ``test/cer_lm`` and ``test/wer_lm``.

    The :attr:`alphabet` comes from the trainer's data module, or from the checkpoint, or is set by
    the caller; without any it is the keyboard where ``num_classes`` fits.

    Args:
        num_classes: C, characters and blank.
        height: H, pixels.
        channels: see :class:`~examples.ocr.darknet.DarkNet`, as the next four.
        convolutions: 3x3 convolutions of each stage.
        reductions: by what each stage divides (height, width).
        downsampling: by max pooling or by strides.
        feature_channels: of a last 1x1 convolution.
        cells: memory cells per layer and direction.
        layers: bidirectional layers.
        dropout: before each LSTM layer but the first, and before the outputs.
        learning_rate: of Adam.
        beta1: of Adam; the paper advises 0.5 under block momentum, 0.9 without.
        beta2: of Adam.
        decay_epochs: after these epochs the learning rate is multiplied by ``decay_factor``.
        decay_factor: see there.
        unalignable: what to do with a training line that has more characters than its frames can
            hold: ``"raise"``, or ``"skip"`` it in the loss with a warning. In validation and test
            such a line is left out of the loss and counts in the error rates.

    Raises:
        ValueError: values out of range.
    """

    def __init__(
        self,
        *,
        num_classes: int = 96,
        height: int = 60,
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
        super().__init__()
        if num_classes < 2 or height < 1 or cells < 1 or layers < 1:
            raise ValueError(
                "num_classes must be at least 2 (a character and the blank), height, cells and "
                f"layers at least 1, got {num_classes}, {height}, {cells} and {layers}"
            )
        if unalignable not in get_args(Unalignable):
            raise ValueError(f"unalignable must be 'raise' or 'skip', got {unalignable!r}")
        self.save_hyperparameters()
        self.num_classes = num_classes
        self.height = height
        self.learning_rate = learning_rate
        self.betas = (beta1, beta2)
        self.decay_epochs = tuple(decay_epochs)
        self.decay_factor = decay_factor
        self.unalignable = unalignable
        self.darknet = DarkNet(
            height=height,
            channels=channels,
            convolutions=convolutions,
            reductions=reductions,
            downsampling=downsampling,
            feature_channels=feature_channels,
        )
        self.lstm = BidirectionalLSTM(
            self.darknet.feature_dim, cells=cells, layers=layers, dropout=dropout
        )
        self.dropout = nn.Dropout(dropout)
        self.affine = nn.Linear(2 * cells, num_classes)
        self.decoder: LineDecoder | None = None
        self.alphabet: Alphabet | None = None
        if num_classes == len(Alphabet()):
            self.alphabet = Alphabet()
        self.metrics = nn.ModuleDict({"train/loss": average()})
        for split in ("valid", "test"):
            self.metrics[f"{split}/loss"] = average()
            self.metrics[f"{split}/cer"] = CharErrorRate()
            self.metrics[f"{split}/wer"] = WordErrorRate()
        self.metrics["test/cer_lm"] = CharErrorRate()
        self.metrics["test/wer_lm"] = WordErrorRate()

    @classmethod
    def small(cls, *, num_classes: int = 96, height: int = 32, **options: Any) -> DarkNetDBLSTM:
        """Build a size that trains on one core: frames of 4 pixels, 2 layers of 64 + 64 cells.

        Args:
            num_classes: C.
            height: H; 24 to 40 suit it.
            options: further arguments of the class, also instead of those set here.
        """
        size: dict[str, Any] = {
            "channels": (16, 32, 64),
            "convolutions": (1, 1, 1),
            "reductions": ((2, 2), (2, 2), (2, 1)),
            "downsampling": "stride",
            "feature_channels": 0,
            "cells": 64,
        }
        return cls(num_classes=num_classes, height=height, **{**size, **options})

    @property
    def subsample(self) -> int:
        """Pixels of width per output frame."""
        return self.darknet.subsample

    def forward(self, images: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
        """Score every frame.

        An image that ends within a frame is continued with paper to the end of it.

        Args:
            images: (B, 1, H, W), 0 for paper to 1 for ink.
            widths: (B,) pixels of each line.

        Returns:
            (T, B, C) log probabilities, float32 or wider, with T = ceil(W / subsample); and (B,)
            int64, the frames of each line: ceil(width / subsample). In evaluation mode a line's
            outputs within its frames depend on nothing but its own image.

        Raises:
            ValueError: images of another height, or lines narrower than one frame or wider than
                the batch.
        """
        self._check_images(images, widths)
        frames = -(-widths // self.subsample)
        fill = -images.shape[-1] % self.subsample
        images = functional.pad(blank_padding(images, widths), (0, fill))
        hidden = self.darknet(images, frames * self.subsample)
        logits = self.affine(self.dropout(self.lstm(hidden, frames)))
        # Under mixed precision the loss is computed in float32.
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return functional.log_softmax(wide, dim=-1), frames

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the CTC loss averaged over the lines of the batch."""
        log_probs, frames = self(batch.images, batch.widths)
        losses, alignable = ctc_losses(log_probs, frames, batch.targets, batch.target_lengths)
        if not bool(alignable.all()):
            self._handle_unalignable(batch, frames, alignable)
        return self._average(losses, alignable, "train")

    def validation_step(self, batch: Batch, batch_idx: int) -> Recognised:
        """Count the loss and the errors of best path decoding; return the texts."""
        return self._evaluate(batch, "valid")[0]

    def test_step(self, batch: Batch, batch_idx: int) -> Recognised:
        """As in validation; with a decoder its errors too, and its texts are returned."""
        recognised, log_probs, frames = self._evaluate(batch, "test")
        if self.decoder is None:
            return recognised
        hypotheses = self.decoded(log_probs, frames)
        self._log_metric("test/cer_lm", hypotheses, recognised["references"])
        self._log_metric("test/wer_lm", hypotheses, recognised["references"])
        return {"references": recognised["references"], "hypotheses": hypotheses}

    def predict_step(self, batch: Batch, batch_idx: int) -> list[str]:
        """Return the texts of the batch, by the decoder where there is one, else by best path."""
        log_probs, frames = self(batch.images, batch.widths)
        return (self.texts if self.decoder is None else self.decoded)(log_probs, frames)

    def texts(self, log_probs: Tensor, frames: Tensor) -> list[str]:
        """Decode by best path: (T, B, C) and (B,) to B texts."""
        alphabet = self._alphabet()
        return [alphabet.decode(numbers) for numbers in best_paths(log_probs, frames)]

    def decoded(self, log_probs: Tensor, frames: Tensor) -> list[str]:
        """Decode by :attr:`decoder`: (T, B, C) and (B,) to B texts.

        Raises:
            ValueError: there is no decoder.
        """
        if self.decoder is None:
            raise ValueError("the model has no decoder; set model.decoder, or use texts()")
        scores = log_probs.float().cpu()
        return [self.decoder.decode(scores[:n, line]) for line, n in enumerate(frames.tolist())]

    def setup(self, stage: str) -> None:
        """Take the alphabet of the trainer's data module.

        Raises:
            ValueError: when it has another number of classes than the model, or when the data
                module counts on narrower frames than the model's.
        """
        data = getattr(self.trainer, "datamodule", None)
        counted_on = getattr(data, "pixels_per_frame", self.subsample)
        if counted_on < self.subsample:
            raise ValueError(
                f"pixels_per_frame of the data must be at least the model's {self.subsample}, got "
                f"{counted_on}; lines would pass that have too few frames for their text"
            )
        alphabet = getattr(data, "alphabet", None)
        if alphabet is None:
            return
        if len(alphabet) != self.num_classes:
            raise ValueError(
                f"num_classes must be the {len(alphabet)} of the data's alphabet (characters and "
                f"blank), got {self.num_classes}"
            )
        self.alphabet = alphabet

    def configure_optimizers(self) -> Any:
        """Adam; its rate falls after each of ``decay_epochs``."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate, betas=self.betas)
        if not self.decay_epochs:
            return optimizer
        schedule = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, milestones=list(self.decay_epochs), gamma=self.decay_factor
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the alphabet's characters, without which outputs cannot be read."""
        if self.alphabet is not None:
            checkpoint["alphabet"] = self.alphabet.characters

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the alphabet."""
        if "alphabet" in checkpoint:
            self.alphabet = Alphabet(checkpoint["alphabet"])

    def _alphabet(self) -> Alphabet:
        if self.alphabet is None:
            raise ValueError(
                f"no alphabet for {self.num_classes} classes: train with a data module that has "
                "one, or set model.alphabet"
            )
        return self.alphabet

    def _check_images(self, images: Tensor, widths: Tensor) -> None:
        if images.dim() != 4 or images.shape[1] != 1 or images.shape[2] != self.height:
            raise ValueError(
                f"images must be (B, 1, {self.height}, W), got {tuple(images.shape)}; give the "
                "data module and the model the same height"
            )
        narrowest, widest = int(widths.min()), int(widths.max())
        if narrowest < self.subsample or widest > images.shape[-1]:
            raise ValueError(
                f"widths must be from {self.subsample}, one frame, to the {images.shape[-1]} "
                f"pixels of the batch, got {narrowest} to {widest}"
            )

    def _evaluate(self, batch: Batch, split: str) -> tuple[Recognised, Tensor, Tensor]:
        log_probs, frames = self(batch.images, batch.widths)
        losses, alignable = ctc_losses(log_probs, frames, batch.targets, batch.target_lengths)
        self._average(losses, alignable, split)
        alphabet = self._alphabet()
        references = [
            alphabet.decode(target[:length])
            for target, length in zip(
                batch.targets.tolist(), batch.target_lengths.tolist(), strict=True
            )
        ]
        hypotheses = self.texts(log_probs, frames)
        self._log_metric(f"{split}/cer", hypotheses, references)
        self._log_metric(f"{split}/wer", hypotheses, references)
        return {"references": references, "hypotheses": hypotheses}, log_probs, frames

    def _average(self, losses: Tensor, alignable: Tensor, split: str) -> Tensor:
        """Log the losses of the alignable lines and return their average, 0 where there is none."""
        lines = alignable.sum()
        average = losses.sum() / lines.clamp(min=1)
        self._log_metric(f"{split}/loss", average.detach(), lines)
        return average

    def _log_metric(self, name: str, *update: Any) -> None:
        metric: Any = self.metrics[name]
        metric.update(*update)
        shown = not name.startswith("train")
        self.log(name, metric, on_step=False, on_epoch=True, prog_bar=shown, batch_size=1)

    def _handle_unalignable(self, batch: Batch, frames: Tensor, alignable: Tensor) -> None:
        """Raise, or warn, about training lines that CTC cannot align."""
        needed = frames_of_batch(batch.targets, batch.target_lengths)
        lines = [
            f"line {batch.index[row]} has {frames[row]} frames and needs {needed[row]}"
            for row, possible in enumerate(alignable.tolist())
            if not possible
        ]
        message = (
            f"CTC cannot align {len(lines)} of the batch's {len(frames)} lines: "
            f"{'; '.join(lines)}. "
            f"A frame is {self.subsample} pixels wide: take higher images, reduce the width less"
        )
        if self.unalignable == "raise":
            raise ValueError(f"{message}, leave the lines out, or set unalignable='skip'")
        warnings.warn(f"{message}. They are left out of the loss", stacklevel=2)
