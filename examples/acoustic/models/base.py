"""Base class of the acoustic models: frame cross entropy, error rates, priors, SGD with newbob."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.nn import functional
from torchmetrics.text import WordErrorRate

from examples.acoustic.decoding.priors import log_priors, scaled_likelihoods
from examples.acoustic.models.frame_average import FrameAverage
from examples.acoustic.models.targets import has_targets
from examples.acoustic.newbob import NewbobLR, StopAtMinimumRate
from examples.acoustic.utterance import PADDING_TARGET, Batch
from examples.sized_by_data import SizedByData


class WordDecoder(Protocol):
    """Interface of decoders from scaled log likelihoods to words."""

    def decode(self, log_likelihoods: Tensor) -> list[str]:
        """Return the words of one utterance from its (T, S) float32 scores on the CPU."""
        ...


class FrameClassifier(SizedByData):
    """Base class of networks that classify each frame into one of S senones.

    The training loss is the cross entropy per frame. A subclass implements
    ``forward(features (B, T, D), lengths (B,)) -> logits (B, T, S)``, in which logits beyond the
    length of an utterance are ignored. It creates its layers in ``_layers`` and calls
    ``take_sizes`` at the end of its constructor.

    The model logs ``train/loss`` and ``train/frame_error_rate``, the same for ``valid`` and
    ``test`` (averages over the frames of all batches and ranks), and ``train/step_loss`` of the
    batch of this rank. With a :attr:`decoder`, it also logs ``test/word_error_rate`` and, if
    ``decode_in_validation`` is set, ``valid/word_error_rate``.

    The reference words of an utterance come from ``datamodule.corpus.valid`` or ``.test`` of the
    Trainer, at the position in the batch's ``index``. A caller may set :attr:`transcripts` instead.

    Args:
        learning_rate: initial learning rate of SGD.
        momentum: momentum of SGD.
        min_learning_rate: training stops when newbob reaches this learning rate.
        min_improvement: least decrease of the loss, relative to the loss, at which the learning
            rate stays constant.
        absolute_improvement: whether ``min_improvement`` is a difference of losses.
        newbob_patience: number of epochs with a smaller decrease until newbob starts to halve.
        newbob_monitor: logged value that newbob monitors; ``train/loss`` for training without
            validation.
        prior_scale: factor of the log prior, which is subtracted from the log posterior before
            decoding.
        decode_in_validation: whether to decode in validation as well as in test.

    Attributes:
        decoder: decoder to words, or None.
        transcripts: reference words of each utterance, by split.
        log_prior: (S,) log prior of each senone.
        num_senones: S, once the layers exist.
    """

    decoder: WordDecoder | None
    transcripts: dict[str, Sequence[Sequence[str]]]
    log_prior: Tensor
    num_senones: int

    def __init__(
        self,
        *,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        min_learning_rate: float = 0.001,
        min_improvement: float = 0.05,
        absolute_improvement: bool = False,
        newbob_patience: int = 1,
        newbob_monitor: str = "valid/loss",
        prior_scale: float = 1.0,
        decode_in_validation: bool = False,
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.min_learning_rate = min_learning_rate
        self.min_improvement = min_improvement
        self.absolute_improvement = absolute_improvement
        self.newbob_patience = newbob_patience
        self.newbob_monitor = newbob_monitor
        self.prior_scale = prior_scale
        self.decode_in_validation = decode_in_validation
        self.decoder = None
        self.transcripts = {}
        self._has_targets = True
        self.metrics = torch.nn.ModuleDict(
            {
                "train/loss": FrameAverage(),
                "train/frame_error_rate": FrameAverage(),
                "valid/loss": FrameAverage(),
                "valid/frame_error_rate": FrameAverage(),
                "valid/word_error_rate": WordErrorRate(),
                "test/loss": FrameAverage(),
                "test/frame_error_rate": FrameAverage(),
                "test/word_error_rate": WordErrorRate(),
            }
        )

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
        if corpus is not None:
            targets = [
                utterance.senones for utterance in corpus.train if utterance.senones is not None
            ]
            if targets:
                self.estimate_priors(targets)

    def on_validation_start(self) -> None:
        """Check whether the split has targets. Raises the errors of :meth:`on_test_start`."""
        self._check_targets("valid", decodes=self.decode_in_validation)

    def on_test_start(self) -> None:
        """Check whether the split has targets.

        Raises:
            ValueError: the corpus and the model differ in the number of senones, or there are
                neither targets nor a decoder.
        """
        self._check_targets("test", decodes=True)

    def estimate_priors(self, targets: Iterable[Tensor]) -> None:
        """Set the senone priors from training targets, a (T,) tensor for each utterance."""
        self.log_prior.copy_(log_priors(targets, self.num_senones))

    def log_likelihoods(self, logits: Tensor) -> Tensor:
        """Return the log posteriors minus ``prior_scale`` times the log priors.

        Args:
            logits: (..., S) outputs of the network.

        Returns:
            (..., S) float32 log likelihoods, up to a constant for each frame.
        """
        return scaled_likelihoods(logits.float(), self.prior_scale * self.log_prior)

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """Return the log likelihoods (T, S) of one utterance (T, D), for decoding and alignment.

        The model must be in evaluation mode.
        """
        lengths = torch.tensor([features.shape[0]], device=self.device)
        return self.log_likelihoods(self(features.to(self.device).unsqueeze(0), lengths))[0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the cross entropy, averaged over the labelled frames of the batch."""
        loss = self._frame_step(self(batch.features, batch.lengths), batch.targets, "train")
        # The value of this rank only, because a reduction would synchronise all ranks.
        self.log("train/step_loss", loss.detach(), on_epoch=False, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Update loss and frame errors if there are targets, and word errors if configured."""
        logits = self(batch.features, batch.lengths)
        if self._has_targets:
            self._frame_step(logits, batch.targets, "valid")
        if self.decode_in_validation:
            self._word_step(logits, batch, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Update loss and frame errors if there are targets, and word errors with a decoder."""
        logits = self(batch.features, batch.lengths)
        if self._has_targets:
            self._frame_step(logits, batch.targets, "test")
        self._word_step(logits, batch, "test")

    def configure_optimizers(self) -> Any:
        """Return SGD with momentum, and min-rate newbob, which steps after every epoch."""
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.learning_rate, momentum=self.momentum
        )
        scheduler = NewbobLR(
            optimizer,
            min_lr=self.min_learning_rate,
            min_improvement=self.min_improvement,
            absolute=self.absolute_improvement,
            patience=self.newbob_patience,
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": scheduler,
                "monitor": self.newbob_monitor,
                "reduce_on_plateau": True,
            },
        }

    def configure_callbacks(self) -> list[Callback]:
        """Return the callback that stops at the minimum rate, unless the Trainer has one.

        The Trainer has one, for example, in its second run.
        """
        present = self.trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, StopAtMinimumRate) for callback in present):
            return []
        return [StopAtMinimumRate()]

    @abstractmethod
    def _layers(self, feature_dim: int, num_senones: int) -> None:
        """Create the layers from D features to S logits."""

    def _build(self, *, feature_dim: int, num_senones: int) -> None:
        self.num_senones = num_senones
        # Uniform until training sets it. A buffer, because decoding needs it from the checkpoint.
        self.register_buffer("log_prior", torch.full((num_senones,), -math.log(num_senones)))
        self._layers(feature_dim, num_senones)

    def _sizes_of(self, data: Any) -> dict[str, int]:
        corpus = data.corpus
        return {"feature_dim": corpus.feature_dim, "num_senones": len(corpus.senones)}

    def _corpus(self) -> Any:
        return getattr(getattr(self._trainer, "datamodule", None), "corpus", None)

    def _checked_corpus(self) -> Any:
        corpus = self._corpus()
        if corpus is not None and len(corpus.senones) != self.num_senones:
            raise ValueError(
                f"num_senones must be the corpus's {len(corpus.senones)}, got {self.num_senones}"
            )
        return corpus

    def _check_targets(self, split: str, *, decodes: bool) -> None:
        corpus, self._has_targets = self._checked_corpus(), True
        if corpus is None or self.trainer.state.fn == TrainerFn.FITTING:
            return
        decodes = decodes and self.decoder is not None
        self._has_targets = has_targets(self.trainer, corpus, split, decodes=decodes)

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

    def _log_metric(self, name: str, *update: Any) -> None:
        metric: Any = self.metrics[name]
        metric.update(*update)
        in_progress_bar = not name.startswith("train")
        self.log(name, metric, on_step=False, on_epoch=True, prog_bar=in_progress_bar, batch_size=1)

    def _word_step(self, logits: Tensor, batch: Batch, split: str) -> None:
        if self.decoder is None:
            return
        scores = self.log_likelihoods(logits).cpu()
        references = self._references(split)
        hypotheses: list[str] = []
        reference_texts: list[str] = []
        for score, length, index in zip(
            scores, batch.lengths.tolist(), batch.index.tolist(), strict=True
        ):
            words = self.decoder.decode(score[:length])
            hypotheses.append(" ".join(words))
            reference_texts.append(" ".join(references[index]))
        self._log_metric(f"{split}/word_error_rate", hypotheses, reference_texts)

    def _references(self, split: str) -> Sequence[Sequence[str]]:
        if split not in self.transcripts:
            corpus = self._corpus()
            if corpus is None:
                raise ValueError(
                    f"decoding needs the reference words of {split!r}: pass a data module with a "
                    f"corpus to the Trainer, or set model.transcripts[{split!r}]"
                )
            self.transcripts[split] = [utterance.words for utterance in getattr(corpus, split)]
        return self.transcripts[split]
