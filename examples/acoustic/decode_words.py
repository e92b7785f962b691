"""Callback that builds a word decoder for the corpus of an acoustic model."""

from __future__ import annotations

from typing import cast

from lightning.pytorch import Callback, LightningModule, Trainer

from examples.acoustic.corpus import Corpus, CorpusDataModule
from examples.acoustic.decoding import BigramModel, HMMTopology, WFSTDecoder
from examples.acoustic.models import FrameClassifier


class DecodeWords(Callback):
    """Decode to words, so that the model logs word error rates.

    Every rank builds the decoder from the corpus of the data module, at the start of the test, and
    of validation if the model decodes in validation. The vocabulary is the lexicon of the training,
    extended by the words of the corpus that is tested. The grammar is a bigram of the training
    transcripts, which checkpoints contain.

    Args:
        acoustic_scale: factor of the acoustic log likelihoods.
        skip: probability of skipping a state of a phone. At 33 frames/s, phones may have fewer
            frames than states.
        beam: largest difference in cost between a path and the best path.
        word_insertion_penalty: cost that is added to each word. It may be negative.
    """

    def __init__(
        self,
        *,
        acoustic_scale: float = 0.6,
        skip: float = 0.3,
        beam: float = 16.0,
        word_insertion_penalty: float = 0.0,
    ) -> None:
        self.acoustic_scale = acoustic_scale
        self.skip = skip
        self.beam = beam
        self.word_insertion_penalty = word_insertion_penalty

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the decoder of the model if it decodes in validation and has none."""
        if cast(FrameClassifier, pl_module).decode_in_validation:
            self.on_test_start(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the decoder of the model if it has none."""
        model = cast(FrameClassifier, pl_module)
        if model.decoder is None:
            data = cast(CorpusDataModule, trainer.datamodule)  # type: ignore[attr-defined]
            model.decoder = self.build(data.corpus)

    def build(self, corpus: Corpus) -> WFSTDecoder:
        """Return a decoder for the senones and words of a corpus.

        Raises:
            ValueError: there are no training transcripts.
        """
        if not corpus.transcripts:
            raise ValueError(
                "a bigram grammar needs training transcripts: pass the checkpoint of a trained "
                "model (--ckpt_path), or add a train split"
            )
        return WFSTDecoder(
            corpus.senones,
            corpus.lexicon,
            BigramModel(corpus.transcripts, corpus.lexicon.words),
            topology=HMMTopology(skip=self.skip),
            beam=self.beam,
            acoustic_scale=self.acoustic_scale,
            word_insertion_penalty=self.word_insertion_penalty,
        )
