"""A network that reads lines of text by CTC: its loss, its error rates, its texts."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, Literal, Protocol, TypedDict, get_args

from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.text import CharErrorRate, WordErrorRate

from examples.ocr.alphabet import Alphabet
from examples.ocr.ctc import ctc_losses, frames_of_batch
from examples.ocr.decoding.best_path import best_paths
from examples.ocr.line import Batch
from examples.sized_by_data import SizedByData

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


class LineReader(SizedByData):
    """Training, validation, test and prediction of a network with CTC outputs.

    Logged: ``train/loss``, ``valid/loss``, ``valid/cer``, ``valid/wer``, ``test/loss``,
    ``test/cer``, ``test/wer``, over all lines and ranks; losses in nats per line; with a
    :attr:`decoder` also ``test/cer_lm`` and ``test/wer_lm``.

    The :attr:`alphabet` comes from the trainer's data module, or from the checkpoint, or is set by
    the caller; without any it is the keyboard where ``num_classes`` fits.

    A subclass makes its layers in ``_layers`` and calls ``take_sizes`` at the end of its
    constructor.

    Args:
        unalignable: what to do with a training line that has more characters than its frames can
            hold: ``"raise"``, or ``"skip"`` it in the loss with a warning. In validation and test
            such a line is left out of the loss and counts in the error rates.

    Raises:
        ValueError: values out of range.
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
        """Make the layers from images of H pixels to C classes."""

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
        """Pixels of width per output frame."""

    @abstractmethod
    def forward(self, images: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
        """Score every frame of (B, 1, H, W) images: (T, B, C) log probabilities, (B,) frames."""

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

    def configure_model(self) -> None:
        """Take sizes and, before training, the alphabet of the trainer's data module.

        Raises:
            ValueError: when it has another number of classes than the model, or when the data
                module counts on narrower frames than the model's.
        """
        super().configure_model()
        # To evaluate, the data are known once the checkpoint has been read.
        if self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING:
            self._take_alphabet()

    def on_validation_start(self) -> None:
        """Take the alphabet of the data; raises as ``configure_model``."""
        self._take_alphabet()

    def on_test_start(self) -> None:
        """Take the alphabet of the data; raises as ``configure_model``."""
        self._take_alphabet()

    def on_predict_start(self) -> None:
        """Take the alphabet of the data; raises as ``configure_model``."""
        self._take_alphabet()

    def _take_alphabet(self) -> None:
        data = getattr(self._trainer, "datamodule", None)
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
