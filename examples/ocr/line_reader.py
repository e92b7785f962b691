"""Base class of models that recognise lines of text with CTC: loss, error rates, decoding."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, Literal, Protocol, TypedDict, get_args

from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.text import CharErrorRate, WordErrorRate

from examples.ocr.alphabet import Alphabet
from examples.ocr.ctc import ctc_losses, frames_needed_in_batch
from examples.ocr.decoding.best_path import best_paths
from examples.ocr.line import Batch
from examples.sized_by_data import SizedByData

Unalignable = Literal["raise", "skip"]


class LineDecoder(Protocol):
    """A decoder of the outputs of one line."""

    def decode(self, log_probs: Tensor) -> str:
        """Decode log probabilities (T, C), float32 on the CPU, to a text."""
        ...


class Recognised(TypedDict):
    """Output of a validation or test step: one reference and one hypothesis for each line."""

    references: list[str]
    hypotheses: list[str]


def average() -> MeanMetric:
    """Return a mean over lines and ranks. NaN values make it NaN, so that they stay visible."""
    return MeanMetric(nan_strategy="disable")


class LineReader(SizedByData):
    """Training, validation, test and prediction of a network with CTC outputs.

    Logged values: ``train/loss``, ``valid/loss``, ``valid/cer``, ``valid/wer``, ``test/loss``,
    ``test/cer`` and ``test/wer``, over all lines and ranks, and with a :attr:`decoder`
    ``test/cer_lm`` and ``test/wer_lm``. Losses are in nats per line.

    The :attr:`alphabet` is that of the trainer's data module or of the checkpoint, or is set by the
    caller. By default, it is the keyboard if ``num_classes`` has the matching value.

    Subclasses create their layers in ``_layers`` and call ``take_sizes`` at the end of their
    constructor.

    Args:
        unalignable: treatment of training lines whose texts need more frames than the lines have.
            ``"raise"``: raise an error. ``"skip"``: exclude the lines from the loss, with a
            warning. Validation and test exclude such lines from the loss and include them in the
            error rates.

    Attributes:
        decoder: decoder for test and prediction in addition to best path, or None.
        alphabet: characters of the outputs, or None if they are not known yet.

    Raises:
        ValueError: if a value is out of range.
    """

    num_classes: int
    height: int

    def __init__(self, *, unalignable: Unalignable) -> None:
        super().__init__()
        if unalignable not in get_args(Unalignable):
            raise ValueError(f"unalignable must be 'raise' or 'skip', got {unalignable!r}")
        self.unalignable = unalignable
        self.decoder: LineDecoder | None = None
        self.alphabet: Alphabet | None = None
        self.metrics = nn.ModuleDict({"train/loss": average()})
        for split in ("valid", "test"):
            self.metrics[f"{split}/loss"] = average()
            self.metrics[f"{split}/cer"] = CharErrorRate()
            self.metrics[f"{split}/wer"] = WordErrorRate()
        self.metrics["test/cer_lm"] = CharErrorRate()
        self.metrics["test/wer_lm"] = WordErrorRate()

    @abstractmethod
    def _layers(self, num_classes: int, height: int) -> None:
        """Create the layers from images of ``height`` pixels to ``num_classes`` outputs."""

    def _build(self, *, num_classes: int, height: int) -> None:
        if num_classes < 2:
            raise ValueError(
                f"num_classes must be at least 2 (a character and the blank), got {num_classes}"
            )
        self.num_classes = num_classes
        self.height = height
        if num_classes == len(Alphabet()):
            self.alphabet = Alphabet()
        self._layers(num_classes, height)

    def _sizes_of(self, data: Any) -> dict[str, int]:
        return {"num_classes": len(data.alphabet), "height": data.height}

    @property
    @abstractmethod
    def subsample(self) -> int:
        """Width of an output frame in pixels."""

    @abstractmethod
    def forward(self, images: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log probabilities (T, B, C) and the number of frames (B,) of each line.

        Args:
            images: (B, 1, H, W), from 0 (paper) to 1 (ink).
            widths: (B,) width of each line in pixels.
        """

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean CTC loss of the lines of the batch."""
        log_probs, frames = self(batch.images, batch.widths)
        losses, alignable = ctc_losses(log_probs, frames, batch.targets, batch.target_lengths)
        if not bool(alignable.all()):
            self._handle_unalignable(batch, frames, alignable)
        return self._average(losses, alignable, "train")

    def validation_step(self, batch: Batch, batch_idx: int) -> Recognised:
        """Log the loss and the error rates of best path decoding. Return the texts."""
        return self._evaluate(batch, "valid")[0]

    def test_step(self, batch: Batch, batch_idx: int) -> Recognised:
        """Log the loss and the error rates. Return the texts of the decoder, or of best path."""
        recognised, log_probs, frames = self._evaluate(batch, "test")
        if self.decoder is None:
            return recognised
        hypotheses = self.decoded(log_probs, frames)
        self._log_metric("test/cer_lm", hypotheses, recognised["references"])
        self._log_metric("test/wer_lm", hypotheses, recognised["references"])
        return {"references": recognised["references"], "hypotheses": hypotheses}

    def predict_step(self, batch: Batch, batch_idx: int) -> list[str]:
        """Return the texts of the batch, from the decoder if there is one, else from best path."""
        log_probs, frames = self(batch.images, batch.widths)
        return (self.texts if self.decoder is None else self.decoded)(log_probs, frames)

    def texts(self, log_probs: Tensor, frames: Tensor) -> list[str]:
        """Decode by best path.

        Args:
            log_probs: (T, B, C).
            frames: (B,) number of frames of each line.
        """
        alphabet = self._alphabet()
        return [alphabet.decode(indices) for indices in best_paths(log_probs, frames)]

    def decoded(self, log_probs: Tensor, frames: Tensor) -> list[str]:
        """Decode with :attr:`decoder`.

        Args:
            log_probs: (T, B, C).
            frames: (B,) number of frames of each line.

        Raises:
            ValueError: if there is no decoder.
        """
        if self.decoder is None:
            raise ValueError("the model has no decoder; set model.decoder, or use texts()")
        scores = log_probs.float().cpu()
        return [self.decoder.decode(scores[:n, line]) for line, n in enumerate(frames.tolist())]

    def configure_model(self) -> None:
        """Take the sizes and, before training, the alphabet from the trainer's data module.

        Raises:
            ValueError: if the alphabet does not fit the model's number of classes, or the data
                module assumes narrower frames than those of the model.
        """
        super().configure_model()
        # In evaluation, the data are available only after the checkpoint has been loaded.
        if self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING:
            self._take_alphabet()

    def on_validation_start(self) -> None:
        """Take the alphabet of the data. Raises the errors of :meth:`configure_model`."""
        self._take_alphabet()

    def on_test_start(self) -> None:
        """Take the alphabet of the data. Raises the errors of :meth:`configure_model`."""
        self._take_alphabet()

    def on_predict_start(self) -> None:
        """Take the alphabet of the data. Raises the errors of :meth:`configure_model`."""
        self._take_alphabet()

    def _take_alphabet(self) -> None:
        data = getattr(self._trainer, "datamodule", None)
        pixels_per_frame = getattr(data, "pixels_per_frame", self.subsample)
        if pixels_per_frame < self.subsample:
            raise ValueError(
                f"pixels_per_frame of the data must be at least the model's {self.subsample}, got "
                f"{pixels_per_frame}; with fewer, the data can contain lines that have too few "
                "frames for their texts"
            )
        alphabet = getattr(data, "alphabet", None)
        if alphabet is None:
            return
        if len(alphabet) != self.num_classes:
            raise ValueError(
                f"num_classes must be {len(alphabet)}, the number of characters in the alphabet of "
                f"the data plus blank, got {self.num_classes}"
            )
        self.alphabet = alphabet

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the characters of the alphabet, which decoding requires."""
        if self.alphabet is not None:
            checkpoint["alphabet"] = self.alphabet.characters

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the alphabet."""
        if "alphabet" in checkpoint:
            self.alphabet = Alphabet(checkpoint["alphabet"])

    def _alphabet(self) -> Alphabet:
        if self.alphabet is None:
            raise ValueError(
                f"the model has no alphabet for {self.num_classes} classes: train with a data "
                "module that has an alphabet, or set model.alphabet"
            )
        return self.alphabet

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
        """Log and return the mean loss of the alignable lines, or 0 if there are none."""
        lines = alignable.sum()
        average = losses.sum() / lines.clamp(min=1)
        self._log_metric(f"{split}/loss", average.detach(), lines)
        return average

    def _log_metric(self, name: str, *update: Any) -> None:
        metric: Any = self.metrics[name]
        metric.update(*update)
        prog_bar = not name.startswith("train")
        self.log(name, metric, on_step=False, on_epoch=True, prog_bar=prog_bar, batch_size=1)

    def _handle_unalignable(self, batch: Batch, frames: Tensor, alignable: Tensor) -> None:
        """Raise an error or issue a warning for training lines that CTC cannot align."""
        needed = frames_needed_in_batch(batch.targets, batch.target_lengths)
        lines = [
            f"line {batch.index[row]} has {frames[row]} frames and needs {needed[row]}"
            for row, possible in enumerate(alignable.tolist())
            if not possible
        ]
        message = (
            f"CTC cannot align {len(lines)} of the batch's {len(frames)} lines: "
            f"{'; '.join(lines)}. "
            f"A frame is {self.subsample} pixels wide: use higher images, reduce the width less"
        )
        if self.unalignable == "raise":
            raise ValueError(f"{message}, leave the lines out, or set unalignable='skip'")
        warnings.warn(f"{message}. They are left out of the loss", stacklevel=2)
