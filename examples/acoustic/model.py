"""LSTM acoustic model of hybrid speech recognition: frame cross entropy, error rates, priors."""

from __future__ import annotations

import logging
import math
from typing import Any, Protocol

import torch
from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric
from torchmetrics.text import WordErrorRate

from examples.acoustic.corpus import PADDING_TARGET, Batch
from examples.acoustic.newbob import NewbobLR, StopAtMinimumRate
from examples.acoustic.priors import log_priors, scaled_likelihoods
from examples.sized_by_data import SizedByData

_LOG = logging.getLogger(__name__)


class WordDecoder(Protocol):
    """Interface of decoders from scaled log likelihoods to words."""

    def decode(self, log_likelihoods: Tensor) -> list[str]:
        """Return the words of one utterance from its (T, S) float32 scores on the CPU."""
        ...


class LSTMAcousticModel(SizedByData):
    """Stacked LSTM, affine layer, softmax over S senones, with delayed outputs.

    It is the model of two_tiered_bmuf_gtc, section 3.2, which has five layers of 768 cells. With
    ``delay = 3``, the output for frame t is computed at frame t + 3 and so depends on three future
    frames. After the end of an utterance, its last frame is repeated.

    The training loss is the cross entropy per frame. The model logs ``train/loss`` and
    ``train/frame_error_rate``, the same for ``valid`` and ``test`` (averages over the frames of all
    batches and ranks), and ``train/step_loss`` of the batch of this rank. With a :attr:`decoder`,
    it also logs ``test/word_error_rate``. The reference words of an utterance come from
    ``datamodule.corpus.test`` of the Trainer, at the position in the batch's ``index``.

    Args:
        feature_dim: number of features of a frame, D. None: taken from the data.
        num_senones: number of classes, S. None: taken from the data.
        hidden_dim: number of cells of each layer.
        num_layers: number of LSTM layers.
        delay: number of future frames on which an output depends.
        learning_rate: initial learning rate of SGD with momentum 0.9.
        min_learning_rate: training stops when newbob reaches this learning rate.

    Attributes:
        decoder: decoder to words, or None.
        log_prior: (S,) log prior of each senone.
    """

    log_prior: Tensor

    def __init__(
        self,
        *,
        feature_dim: int | None = None,
        num_senones: int | None = None,
        hidden_dim: int = 128,
        num_layers: int = 2,
        delay: int = 3,
        learning_rate: float = 0.1,
        min_learning_rate: float = 0.001,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.delay = delay
        self.learning_rate = learning_rate
        self.min_learning_rate = min_learning_rate
        self.decoder: WordDecoder | None = None
        self._has_targets = True
        self.metrics = nn.ModuleDict({"test/word_error_rate": WordErrorRate()})
        for split in ("train", "valid", "test"):
            self.metrics[f"{split}/loss"] = FrameAverage()
            self.metrics[f"{split}/frame_error_rate"] = FrameAverage()
        self.take_sizes(feature_dim=feature_dim, num_senones=num_senones)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Compute the logits of every frame.

        Args:
            features: (B, T, D) features; utterance b has ``lengths[b]`` frames.
            lengths: (B,) number of frames of each utterance.

        Returns:
            (B, T, S) logits. Those at t depend on the frames up to t + ``delay``. Those beyond the
            length of an utterance have no meaning.
        """
        hidden, _ = self.lstm(_extended(features, lengths, self.delay))
        logits: Tensor = self.affine(hidden[:, self.delay :])
        return logits

    def configure_model(self) -> None:
        """Set the sizes and, before training, the priors from the corpus.

        Every rank has the whole corpus, so the priors are equal on all ranks.

        Raises:
            ValueError: the corpus and the model differ in the number of senones.
        """
        super().configure_model()
        # In evaluation, the corpus is built only after the checkpoint has been loaded.
        if self._trainer is None or self._trainer.state.fn != TrainerFn.FITTING:
            return
        corpus = self._checked_corpus()
        targets = [] if corpus is None else [utterance.senones for utterance in corpus.train]
        aligned = [target for target in targets if target is not None]
        if aligned:
            self.log_prior.copy_(log_priors(aligned, self.num_senones))

    def on_validation_start(self) -> None:
        """Check whether the split has targets. Raises the errors of :meth:`on_test_start`."""
        self._check_targets("valid", decodes=False)

    def on_test_start(self) -> None:
        """Check whether the split has targets.

        Raises:
            ValueError: the corpus and the model differ in the number of senones, or there are
                neither targets nor a decoder.
        """
        self._check_targets("test", decodes=self.decoder is not None)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the cross entropy, averaged over the labelled frames of the batch."""
        loss = self._frame_step(self(batch.features, batch.lengths), batch.targets, "train")
        # The value of this rank only, because a reduction would synchronise all ranks.
        self.log("train/step_loss", loss.detach(), on_epoch=False, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Update loss and frame errors."""
        self._frame_step(self(batch.features, batch.lengths), batch.targets, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Update loss and frame errors if there are targets, and word errors with a decoder."""
        logits = self(batch.features, batch.lengths)
        if self._has_targets:
            self._frame_step(logits, batch.targets, "test")
        if self.decoder is not None:
            self._word_step(self.decoder, logits, batch)

    def configure_optimizers(self) -> Any:
        """Return SGD with momentum, and min-rate newbob, which steps after every epoch."""
        optimizer = self.sgd()
        scheduler = NewbobLR(optimizer, min_lr=self.min_learning_rate)
        schedule = {"scheduler": scheduler, "monitor": "valid/loss", "reduce_on_plateau": True}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def sgd(self) -> torch.optim.SGD:
        """Return SGD with momentum and the initial learning rate."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)

    def configure_callbacks(self) -> list[Callback]:
        """Return the callback that stops at the minimum rate, unless the Trainer has one.

        The Trainer has one, for example, in its second run.
        """
        present = self.trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, StopAtMinimumRate) for callback in present):
            return []
        return [StopAtMinimumRate()]

    def _build(self, *, feature_dim: int, num_senones: int) -> None:
        self.num_senones = num_senones
        # Uniform until training sets it. A buffer, because decoding needs it from the checkpoint.
        self.register_buffer("log_prior", torch.full((num_senones,), -math.log(num_senones)))
        self.lstm = nn.LSTM(feature_dim, self.hidden_dim, self.num_layers, batch_first=True)
        self.affine = nn.Linear(self.hidden_dim, num_senones)

    def _sizes_of(self, data: Any) -> dict[str, int]:
        corpus = data.corpus
        return {"feature_dim": corpus.feature_dim, "num_senones": len(corpus.senones)}

    def _checked_corpus(self) -> Any:
        corpus = getattr(getattr(self._trainer, "datamodule", None), "corpus", None)
        if corpus is not None and len(corpus.senones) != self.num_senones:
            raise ValueError(
                f"num_senones must be the corpus's {len(corpus.senones)}, got {self.num_senones}"
            )
        return corpus

    def _check_targets(self, split: str, *, decodes: bool) -> None:
        """Set whether a split has targets on all ranks, or can at least be decoded."""
        corpus, self._has_targets = self._checked_corpus(), True
        if corpus is None or self.trainer.state.fn == TrainerFn.FITTING:
            return
        has_targets_here = any(each.senones is not None for each in getattr(corpus, split))
        # All ranks must log the same values, even if only some hosts have cached alignments.
        self._has_targets = self.trainer.strategy.reduce_boolean_decision(has_targets_here)
        if self._has_targets:
            return
        if not decodes:
            raise ValueError(
                f"the {split} split has no alignments for frame errors, and no decoder for word "
                "errors: add alignments, or test with the callback DecodeWords"
            )
        rank_zero_only(_LOG.warning)(
            "the %s split has no alignments: word errors are scored, loss and frame errors are not",
            split,
        )

    def _frame_step(self, logits: Tensor, targets: Tensor, split: str) -> Tensor:
        labelled = targets != PADDING_TARGET
        frames = labelled.sum()
        total = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING_TARGET, reduction="sum"
        )
        errors = ((logits.detach().argmax(dim=-1) != targets) & labelled).sum()
        self._log_metric(f"{split}/loss", total, frames)
        self._log_metric(f"{split}/frame_error_rate", errors, frames)
        return total / frames.clamp(min=1)

    def _word_step(self, decoder: WordDecoder, logits: Tensor, batch: Batch) -> None:
        scores = scaled_likelihoods(logits.float(), self.log_prior).cpu()
        spoken = self._checked_corpus().test
        words = [
            decoder.decode(score[:length])
            for score, length in zip(scores, batch.lengths.tolist(), strict=True)
        ]
        references = [spoken[index].words for index in batch.index.tolist()]
        self._log_metric(
            "test/word_error_rate", [" ".join(w) for w in words], [" ".join(w) for w in references]
        )

    def _log_metric(self, name: str, *update: Any) -> None:
        metric: Any = self.metrics[name]
        metric.update(*update)
        in_progress_bar = not name.startswith("train")
        self.log(name, metric, on_step=False, on_epoch=True, prog_bar=in_progress_bar, batch_size=1)


def _extended(features: Tensor, lengths: Tensor, frames: int) -> Tensor:
    """Append copies of the last frame of each utterance: (B, T, D) to (B, T + frames, D).

    Padding is replaced by copies of the last frame as well. So the result for an utterance does not
    depend on the rest of the batch.
    """
    batch, num_frames, dim = features.shape
    position = torch.arange(num_frames + frames, device=features.device)
    last = (lengths.to(features.device) - 1).clamp(min=0)
    source = torch.minimum(position.unsqueeze(0), last.unsqueeze(1))
    return features.gather(1, source.unsqueeze(2).expand(batch, source.shape[1], dim))


class FrameAverage(Metric):
    """Sum of a quantity over frames divided by the number of frames, over all batches and ranks.

    A mean of the means of batches, or of ranks, would give the frames of small batches, or of ranks
    with few frames, a larger weight. The sum is in float64, because counts of errors in float32 are
    exact only up to 2^24.
    """

    full_state_update = False
    higher_is_better = False
    total: Tensor
    frames: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("frames", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, total: Tensor, frames: Tensor) -> None:
        """Add a batch: the sum of the quantity over its frames, and their number."""
        self.total += total.detach().to(torch.float64)
        self.frames += frames

    def compute(self) -> Tensor:
        """Return the average, a float64 scalar. It is NaN if there was no frame."""
        return self.total / self.frames
