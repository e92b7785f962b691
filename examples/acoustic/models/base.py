"""What all acoustic models share: frame cross entropy, error rates, priors, SGD with newbob."""

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
    """Whatever turns scaled log likelihoods into words."""

    def decode(self, log_likelihoods: Tensor) -> list[str]:
        """Return the words of one utterance from its (T, S) float32 scores on the CPU."""
        ...


class FrameClassifier(SizedByData):
    """A network that gives every frame a score per senone, trained by frame cross entropy.

    A subclass defines ``forward(features (B, T, D), lengths (B,)) -> logits (B, T, S)``; scores
    beyond an utterance's length are ignored. It makes its layers in ``_layers`` and calls
    ``take_sizes`` at the end of its constructor.

    Logged: ``train/loss``, ``train/frame_error_rate`` and the same for ``valid`` and ``test``,
    per frame over all batches and ranks; ``train/step_loss`` of this rank's batch; with a
    :attr:`decoder` also ``test/word_error_rate`` and, if asked for, ``valid/word_error_rate``.

    To get word error rates, set :attr:`decoder`. The reference words are those of the trainer's
    ``datamodule.corpus.valid`` and ``.test`` at each batch's ``index``, or what the caller puts
    into :attr:`transcripts`.

    Args:
        learning_rate: initial rate of SGD.
        momentum: of SGD.
        min_learning_rate: training stops when newbob reaches it.
        min_improvement: fall of the loss that keeps the rate as it is, as a share of the loss.
        absolute_improvement: ``min_improvement`` is a difference of losses instead.
        newbob_patience: epochs with a smaller fall until newbob begins to halve.
        newbob_monitor: the logged loss that newbob follows; ``train/loss`` for a fit without
            validation.
        prior_scale: how much of the log prior is subtracted from the log posterior for decoding.
        decode_in_validation: decode in validation too, not only in test.
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
        """Take sizes and, before training, priors from the corpus, which every rank holds in full.

        Raises:
            ValueError: when the corpus has another number of senones than the model.
        """
        super().configure_model()
        # To evaluate, the corpus is known once the checkpoint has been read.
        if self._trainer is None or self._trainer.state.fn != TrainerFn.FITTING:
            return
        corpus = self._checked_corpus()
        if corpus is not None:
            aligned = [each.senones for each in corpus.train if each.senones is not None]
            if aligned:
                self.estimate_priors(aligned)

    def on_validation_start(self) -> None:
        """See whether there are targets; raises as :meth:`on_test_start`."""
        self._look_for_targets("valid", decodes=self.decode_in_validation)

    def on_test_start(self) -> None:
        """See whether there are targets.

        Raises:
            ValueError: the corpus has another number of senones than the model, or neither targets
                nor a decoder are there.
        """
        self._look_for_targets("test", decodes=True)

    def estimate_priors(self, targets: Iterable[Tensor]) -> None:
        """Set the senone priors from the training targets, one (T,) tensor per utterance."""
        self.log_prior.copy_(log_priors(targets, self.num_senones))

    def log_likelihoods(self, logits: Tensor) -> Tensor:
        """Log posterior minus ``prior_scale`` times log prior.

        Args:
            logits: (..., S).

        Returns:
            (..., S) float32, up to a constant per frame.
        """
        return scaled_likelihoods(logits.float(), self.prior_scale * self.log_prior)

    @torch.no_grad()
    def score(self, features: Tensor) -> Tensor:
        """Log likelihoods (T, S) of one utterance (T, D), for decoding and alignment.

        Call it in evaluation mode.
        """
        lengths = torch.tensor([features.shape[0]], device=self.device)
        return self.log_likelihoods(self(features.to(self.device).unsqueeze(0), lengths))[0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the cross entropy averaged over the labelled frames of the batch."""
        loss = self._frame_step(self(batch.features, batch.lengths), batch.targets, "train")
        # Only this rank's value: a reduction here would make all ranks wait for each other.
        self.log("train/step_loss", loss.detach(), on_epoch=False, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count loss and frame errors where there are targets, and word errors when asked for."""
        logits = self(batch.features, batch.lengths)
        if self._has_targets:
            self._frame_step(logits, batch.targets, "valid")
        if self.decode_in_validation:
            self._word_step(logits, batch, "valid")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count loss and frame errors where there are targets; with a decoder, word errors."""
        logits = self(batch.features, batch.lengths)
        if self._has_targets:
            self._frame_step(logits, batch.targets, "test")
        self._word_step(logits, batch, "test")

    def configure_optimizers(self) -> Any:
        """SGD with momentum; min-rate newbob stepped on the monitored loss after every epoch."""
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
        """Stop at the minimum rate, unless the Trainer (in a second run, say) does so already."""
        present = self.trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, StopAtMinimumRate) for callback in present):
            return []
        return [StopAtMinimumRate()]

    @abstractmethod
    def _layers(self, feature_dim: int, num_senones: int) -> None:
        """Make the layers from D features to S logits."""

    def _build(self, *, feature_dim: int, num_senones: int) -> None:
        self.num_senones = num_senones
        # Uniform until a training corpus is seen; saved with the model because decoding needs it.
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

    def _look_for_targets(self, split: str, *, decodes: bool) -> None:
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
        shown = not name.startswith("train")
        self.log(name, metric, on_step=False, on_epoch=True, prog_bar=shown, batch_size=1)

    def _word_step(self, logits: Tensor, batch: Batch, split: str) -> None:
        if self.decoder is None:
            return
        scores = self.log_likelihoods(logits).cpu()
        references = self._references(split)
        hypotheses: list[str] = []
        truths: list[str] = []
        for score, length, index in zip(
            scores, batch.lengths.tolist(), batch.index.tolist(), strict=True
        ):
            words = self.decoder.decode(score[:length])
            hypotheses.append(" ".join(words))
            truths.append(" ".join(references[index]))
        self._log_metric(f"{split}/word_error_rate", hypotheses, truths)

    def _references(self, split: str) -> Sequence[Sequence[str]]:
        if split not in self.transcripts:
            corpus = self._corpus()
            if corpus is None:
                raise ValueError(
                    f"decoding needs the reference words of {split!r}: give the trainer a data "
                    f"module with a corpus, or set model.transcripts[{split!r}]"
                )
            self.transcripts[split] = [utterance.words for utterance in getattr(corpus, split)]
        return self.transcripts[split]
