"""Beam search with a 2-gram model, by the CTC decoders of flashlight-text.

All three decoders search for the text with the highest score::

    ln p(path | image) + lm_weight ln P(text) + word_score (number of words)

The path is the most probable one of the text. With ``sum_paths``, p is the sum over all paths of
the text.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

# Without flashlight-text, the import of scorers.py raises an error that names the package.
from flashlight.lib.text.decoder import (
    CriterionType,
    LexiconDecoder,
    LexiconDecoderOptions,
    LexiconFreeDecoder,
    LexiconFreeDecoderOptions,
    SmearingMode,
    Trie,
)
from torch import Tensor

from examples.ocr.alphabet import BLANK, Alphabet
from examples.ocr.decoding.best_path import collapse
from examples.ocr.decoding.hybrid import HybridModel
from examples.ocr.decoding.language_model import Bigram
from examples.ocr.decoding.scorers import HybridScorer, Scorer, scorer

# Units of ARPA files cannot contain white space.
_SPACE = "<space>"
_IMPOSSIBLE = -1e4


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamOptions:
    """Weights and pruning of a beam search.

    Attributes:
        lm_weight: weight of the language model relative to the network.
        word_score: score added for each word. Positive scores favour shorter words. It has no
            effect in :class:`CharacterBeam` and :class:`HybridBeam`.
        beam_size: number of hypotheses that are kept per frame.
        beam_size_token: number of most probable outputs that are considered per frame. None: all.
        beam_threshold: maximum difference to the best hypothesis in nats. Hypotheses with a larger
            difference are dropped.
        sum_paths: whether to sum over the paths of a text instead of taking the best path.

    Raises:
        ValueError: if a size or the threshold is out of range.
    """

    lm_weight: float = 0.5
    word_score: float = 0.0
    beam_size: int = 50
    beam_size_token: int | None = 20
    beam_threshold: float = 25.0
    sum_paths: bool = True

    def __post_init__(self) -> None:
        tokens = self.beam_size_token
        if self.beam_size < 1 or (tokens is not None and tokens < 1) or self.beam_threshold <= 0:
            raise ValueError(
                "beam_size and beam_size_token must be at least 1, beam_threshold above 0, got "
                f"{self.beam_size}, {tokens} and {self.beam_threshold}"
            )

    def decoder_arguments(self, classes: int, nats: float) -> dict[str, Any]:
        """Return the arguments that all decoders of flashlight-text share.

        Args:
            classes: number of outputs of the network.
            nats: factor that converts scores of the language model to natural logarithms.
        """
        return {
            "beam_size": self.beam_size,
            "beam_size_token": min(self.beam_size_token or classes, classes),
            "beam_threshold": self.beam_threshold,
            "lm_weight": self.lm_weight * nats,
            "sil_score": 0.0,
            "log_add": self.sum_paths,
            "criterion_type": CriterionType.CTC,
        }


class _CharacterwiseBeam:
    """Beam search without a lexicon, with a language model that scores characters."""

    def __init__(self, alphabet: Alphabet, model: Scorer, options: BeamOptions) -> None:
        self._alphabet = alphabet
        self._model = model
        # The decoder adds a silence at both ends of each line. The blank serves as the silence.
        self._decoder = LexiconFreeDecoder(
            LexiconFreeDecoderOptions(**options.decoder_arguments(len(alphabet), model.nats)),
            model.model,
            BLANK,
            BLANK,
            [],
        )

    def decode(self, log_probs: Tensor) -> str:
        """Return the best text.

        Args:
            log_probs: log probabilities (T, C) of a line.

        Raises:
            ValueError: if C is not the size of the alphabet.
        """
        best = _search(self._decoder, log_probs, len(self._alphabet))
        return self._alphabet.decode(collapse(best.tokens[1:-1]))


class CharacterBeam(_CharacterwiseBeam):
    """Beam search with a 2-gram model over characters.

    Args:
        alphabet: alphabet of the network.
        texts: lines from which the model is estimated, with characters of the alphabet.
        options: weights and pruning.
    """

    def __init__(
        self, alphabet: Alphabet, texts: Iterable[str], options: BeamOptions | None = None
    ) -> None:
        units = {character: character for character in alphabet.characters}
        if " " in units:
            units[" "] = _SPACE
        self.bigram = Bigram(([units[each] for each in text] for text in texts), units.values())
        model = scorer(self.bigram, ["<blank>", *units.values()])
        super().__init__(alphabet, model, options or BeamOptions())


class HybridBeam(_CharacterwiseBeam):
    """Beam search with a :class:`HybridModel` over words and characters.

    Args:
        alphabet: alphabet of the network.
        texts: lines from which the model is estimated, with characters of the alphabet.
        options: weights and pruning.
        min_count: minimum number of occurrences of a word in the lexicon.
    """

    def __init__(
        self,
        alphabet: Alphabet,
        texts: Iterable[str],
        options: BeamOptions | None = None,
        *,
        min_count: int = 2,
    ) -> None:
        self.hybrid = HybridModel(texts, alphabet.characters, min_count=min_count)
        model = HybridScorer(self.hybrid, ["", *alphabet.characters])
        super().__init__(alphabet, Scorer(model, 1.0), options or BeamOptions())


class WordBeam:
    """Beam search with a 2-gram model over the words of a closed vocabulary.

    Args:
        alphabet: alphabet of the network, which must contain the space.
        texts: lines from which the model is estimated.
        options: weights and pruning.
        vocabulary: words in addition to those of the texts.

    Raises:
        ValueError: if the alphabet does not contain the space or a character of a word.
    """

    def __init__(
        self,
        alphabet: Alphabet,
        texts: Iterable[str],
        options: BeamOptions | None = None,
        *,
        vocabulary: Iterable[str] = (),
    ) -> None:
        if " " not in alphabet.characters:
            raise ValueError(
                "words are separated by spaces, but the alphabet has none; use CharacterBeam"
            )
        options = options or BeamOptions()
        self._alphabet = alphabet
        self._space = alphabet.encode(" ")[0]
        self.bigram = Bigram((text.split() for text in texts), vocabulary)
        model = scorer(self.bigram, self.bigram.units)
        self._decoder = LexiconDecoder(
            LexiconDecoderOptions(
                **options.decoder_arguments(len(alphabet), model.nats),
                word_score=options.word_score,
                unk_score=-float("inf"),
            ),
            self._lexicon(model),
            model.model,
            self._space,
            BLANK,
            -1,
            [],
            False,
        )
        # The decoder holds no reference to the model.
        self._model = model

    def _lexicon(self, model: Scorer) -> Trie:
        """Return a trie of the words with a space after each word.

        Inner nodes have the score of their best word.
        """
        lexicon = Trie(len(self._alphabet), self._space)
        for number, word in enumerate(self.bigram.units):
            frequency = self.bigram.unigram_log_prob(word) / model.nats
            lexicon.insert(self._alphabet.encode(f"{word} "), number, frequency)
        lexicon.smear(SmearingMode.MAX)
        return lexicon

    def decode(self, log_probs: Tensor) -> str:
        """Return the best text of words of the vocabulary.

        Args:
            log_probs: log probabilities (T, C) of a line.

        Raises:
            ValueError: if C is not the size of the alphabet.
        """
        # An additional frame with a space ends the last word.
        end = log_probs.new_full((1, log_probs.shape[1]), _IMPOSSIBLE)
        end[0, self._space] = 0.0
        best = _search(self._decoder, torch.cat([log_probs, end]), len(self._alphabet))
        return " ".join(self.bigram.units[number] for number in best.words if number >= 0)


def _search(decoder: Any, log_probs: Tensor, classes: int) -> Any:
    """Return the best result of the decoder."""
    if log_probs.dim() != 2 or log_probs.shape[1] != classes:
        raise ValueError(
            f"log_probs must be (T, {classes}), the alphabet's size, got {tuple(log_probs.shape)}"
        )
    emissions = log_probs.detach().to("cpu", torch.float32).contiguous()
    # Models in Python create a hundred thousand states per line, none of them in a reference cycle.
    # Garbage collection would double the time.
    gc_enabled = gc.isenabled()
    gc.disable()
    try:
        return decoder.decode(emissions.data_ptr(), *emissions.shape)[0]
    finally:
        if gc_enabled:
            gc.enable()
