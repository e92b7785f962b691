"""A callback that gives an acoustic model a word decoder for its own corpus."""

from __future__ import annotations

from typing import Literal, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from examples.acoustic.corpus import Corpus, CorpusDataModule
from examples.acoustic.decoding import BigramModel, HMMTopology, WFSTDecoder, WordLoop
from examples.acoustic.decoding.language_model import Grammar
from examples.acoustic.models import FrameClassifier

GrammarKind = Literal["bigram", "loop"]


class DecodeWords(Callback):
    """Decode to words, so that the model logs word error rates.

    Every rank builds the decoder from the corpus of the trainer's data module, so nothing is sent.
    Building takes place in test, and in validation only if the model decodes there. The words are
    those of the lexicon: of the training, and of the corpus that is tested.

    Args:
        grammar: ``"bigram"`` of the training transcripts (a checkpoint has them), or ``"loop"`` of
            equally probable words; both over all words of the lexicon.
        acoustic_scale: weight of the acoustic scores against the grammar.
        skip: probability of passing over a state of a phone; at 33 frames a second a phone may have
            fewer frames than states.
        beam: how much worse than the best a path may be.
        word_insertion_penalty: cost of each word.
    """

    def __init__(
        self,
        *,
        grammar: GrammarKind = "bigram",
        acoustic_scale: float = 0.6,
        skip: float = 0.3,
        beam: float = 16.0,
        word_insertion_penalty: float = 0.0,
    ) -> None:
        self.grammar = grammar
        self.acoustic_scale = acoustic_scale
        self.skip = skip
        self.beam = beam
        self.word_insertion_penalty = word_insertion_penalty

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the model's decoder, unless it has one or does not decode in validation."""
        if cast(FrameClassifier, pl_module).decode_in_validation:
            self.on_test_start(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the model's decoder, unless it has one."""
        model = cast(FrameClassifier, pl_module)
        if model.decoder is None:
            data = cast(CorpusDataModule, trainer.datamodule)  # type: ignore[attr-defined]
            model.decoder = self.build(data.corpus)

    def build(self, corpus: Corpus) -> WFSTDecoder:
        """Return a decoder for the corpus's senones and words.

        Raises:
            ValueError: a bigram grammar, and there are no training transcripts.
        """
        return WFSTDecoder(
            corpus.senones,
            corpus.lexicon,
            self._grammar(corpus),
            topology=HMMTopology(skip=self.skip),
            beam=self.beam,
            acoustic_scale=self.acoustic_scale,
            word_insertion_penalty=self.word_insertion_penalty,
        )

    def _grammar(self, corpus: Corpus) -> Grammar:
        if self.grammar == "loop":
            return WordLoop(corpus.lexicon.words)
        if not corpus.transcripts:
            raise ValueError(
                "a bigram grammar needs training transcripts: give the checkpoint of a trained "
                "model (--ckpt_path), a train split, or grammar='loop'"
            )
        return BigramModel(corpus.transcripts, corpus.lexicon.words)
