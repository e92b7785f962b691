"""Beam search with a 2-gram model, by flashlight-text's CTC decoders.

All three decoders look for the text with the highest

    ln p(path | image) + lm_weight ln P(text) + word_score (number of words)

where the path is the most probable one of the text or, with ``sum_paths``, all of its paths are
summed up.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

# Without flashlight-text, scorers.py has said what to install before this line is reached.
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

# ARPA files separate units by white space.
_SPACE = "<space>"
_IMPOSSIBLE = -1e4


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamOptions:
    """How a beam search weighs and prunes.

    Attributes:
        lm_weight: of the language model against the network.
        word_score: added per word; a positive one favours more, shorter words. Without effect in
            :class:`CharacterBeam` and :class:`HybridBeam`.
        beam_size: hypotheses kept per frame.
        beam_size_token: outputs tried per frame, the best ones; None tries all.
        beam_threshold: hypotheses worse than the best by more than this are dropped, in nats.
        sum_paths: sum up the paths of a text instead of taking the best one.

    Raises:
        ValueError: sizes or the threshold out of range.
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

    def given(self, classes: int, nats: float) -> dict[str, Any]:
        """Return the options that all decoders of flashlight-text have."""
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
    """Search without a lexicon; the language model scores characters."""

    def __init__(self, alphabet: Alphabet, model: Scorer, options: BeamOptions) -> None:
        self._alphabet = alphabet
        self._model = model
        # The blank in the place of a silence, which such a decoder puts around each line.
        self._decoder = LexiconFreeDecoder(
            LexiconFreeDecoderOptions(**options.given(len(alphabet), model.nats)),
            model.model,
            BLANK,
            BLANK,
            [],
        )

    def decode(self, log_probs: Tensor) -> str:
        """Return the best text.

        Args:
            log_probs: (T, C) of one line.

        Raises:
            ValueError: another number of classes than the alphabet's.
        """
        best = _search(self._decoder, log_probs, len(self._alphabet))
        return self._alphabet.decode(collapse(best.tokens[1:-1]))


class CharacterBeam(_CharacterwiseBeam):
    """Beam search with a 2-gram over characters.

    Args:
        alphabet: of the network.
        texts: lines from which the model is counted, in the alphabet's characters.
        options: weights and pruning.
    """

    def __init__(
        self, alphabet: Alphabet, texts: Iterable[str], options: BeamOptions | None = None
    ) -> None:
        units = [_SPACE if each == " " else each for each in alphabet.characters]
        named = dict(zip(alphabet.characters, units, strict=True))
        self.bigram = Bigram(([named[each] for each in text] for text in texts), units)
        model = scorer(self.bigram, ["<blank>", *units])
        super().__init__(alphabet, model, options or BeamOptions())


class HybridBeam(_CharacterwiseBeam):
    """Beam search with a 2-gram over words that spells other words by a 2-gram over characters.

    Args:
        alphabet: of the network.
        texts: lines from which the model is counted, in the alphabet's characters.
        options: weights and pruning.
        min_count: words seen less often in the texts are spelt.
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
        asked = HybridScorer(self.hybrid, ["", *alphabet.characters])
        super().__init__(alphabet, Scorer(asked, 1.0), options or BeamOptions())


class WordBeam:
    """Beam search with a 2-gram over the words of a closed vocabulary.

    Args:
        alphabet: of the network; it must have the space.
        texts: lines from which the model is counted.
        options: weights and pruning.
        vocabulary: words beyond those of the texts.

    Raises:
        ValueError: an alphabet without the space, or words with characters outside of it.
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
                "words are told apart by spaces and the alphabet has none; use CharacterBeam"
            )
        options = options or BeamOptions()
        self._alphabet = alphabet
        self._space = alphabet.encode(" ")[0]
        self.bigram = Bigram((text.split() for text in texts), vocabulary)
        model = scorer(self.bigram, self.bigram.units)
        self._decoder = LexiconDecoder(
            LexiconDecoderOptions(
                **options.given(len(alphabet), model.nats),
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
        # The decoder itself keeps no Python object alive.
        self._model = model

    def _lexicon(self, model: Scorer) -> Trie:
        """Tree of the spellings; a word ends with its space, and inner nodes know the best word."""
        lexicon = Trie(len(self._alphabet), self._space)
        for number, word in enumerate(self.bigram.units):
            frequency = self.bigram.unigram_log_prob(word) / model.nats
            lexicon.insert(self._alphabet.encode(f"{word} "), number, frequency)
        lexicon.smear(SmearingMode.MAX)
        return lexicon

    def decode(self, log_probs: Tensor) -> str:
        """Return the best text of words of the vocabulary.

        Args:
            log_probs: (T, C) of one line.

        Raises:
            ValueError: another number of classes than the alphabet's.
        """
        # One frame more, which is a space: so the last word ends as all others.
        end = log_probs.new_full((1, log_probs.shape[1]), _IMPOSSIBLE)
        end[0, self._space] = 0.0
        best = _search(self._decoder, torch.cat([log_probs, end]), len(self._alphabet))
        return " ".join(self.bigram.units[number] for number in best.words if number >= 0)


def _search(decoder: Any, log_probs: Tensor, classes: int) -> Any:
    """Return the decoder's best result."""
    if log_probs.dim() != 2 or log_probs.shape[1] != classes:
        raise ValueError(
            f"log_probs must be (T, {classes}), the alphabet's size, got {tuple(log_probs.shape)}"
        )
    emissions = log_probs.detach().to("cpu", torch.float32).contiguous()
    # Models in Python make a hundred thousand states per line, none in a cycle: to look through
    # them again and again would double the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return decoder.decode(emissions.data_ptr(), *emissions.shape)[0]
    finally:
        if collecting:
            gc.enable()
