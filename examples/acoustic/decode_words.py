"""Callback that builds a word decoder for the corpus of an acoustic model."""

from __future__ import annotations

from typing import cast

from lightning.pytorch import Callback, LightningModule, Trainer

from examples.acoustic.bigram import BigramModel
from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.decoding import WFSTDecoder
from examples.acoustic.model import LSTMAcousticModel


class DecodeWords(Callback):
    """Decode to words, so that the model logs word error rates in test.

    Every rank builds the decoder from the corpus of the data module. The vocabulary is the lexicon
    of the training, extended by the words of the corpus that is tested. The grammar is a bigram of
    the training transcripts, which checkpoints contain.
    """

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the decoder of the model if it has none."""
        model = cast(LSTMAcousticModel, pl_module)
        if model.decoder is None:
            corpus = cast(AcousticDataModule, trainer.datamodule).corpus  # type: ignore[attr-defined]
            grammar = BigramModel(corpus.transcripts, corpus.lexicon.words)
            model.decoder = WFSTDecoder(corpus.senones, corpus.lexicon, grammar)
