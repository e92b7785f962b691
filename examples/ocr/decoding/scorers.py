"""Language models in the form that flashlight-text's decoders ask for scores.

``KenLM`` comes inside flashlight-text's wheels and needs no further package. Where a build lacks
it, the same model is asked in Python, several times as slow, with the same result.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from examples.ocr.decoding.hybrid import HybridModel
from examples.ocr.decoding.language_model import BEGIN, END, Bigram

try:
    from flashlight.lib.text.decoder import LM, LMState
    from flashlight.lib.text.dictionary import Dictionary
except ImportError as error:
    raise ImportError(
        "beam search needs flashlight-text, which is not installed: pip install flashlight-text "
        "(or decode by best path, which needs nothing)"
    ) from error


# Two spaces in a row, or one at an end of the line, have no place in normalised text.
FORBIDDEN = -1e4


class Scorer(NamedTuple):
    """A language model for a decoder, and what turns its scores into natural logarithms."""

    model: Any
    nats: float


class _History(LMState):
    """All units that a hypothesis has so far, as a node of a tree.

    No two histories share a state, even where the model does not tell them apart: the decoder sums
    up or compares all paths of equal state as if they were one text.
    """

    def __init__(self, *memory: str) -> None:
        super().__init__()
        self.memory = memory
        # Most histories are pruned before anything follows: they need no dictionary.
        self._followers: dict[int, tuple[_History, float]] | None = None

    @property
    def followers(self) -> dict[int, tuple[_History, float]]:
        """What came after it by unit, with the score."""
        if self._followers is None:
            self._followers = {}
        return self._followers


class PythonBigram(LM):
    """A :class:`Bigram` behind flashlight's interface, in nats.

    Args:
        bigram: the model.
        units: its units in the order of the decoder's numbers.
    """

    def __init__(self, bigram: Bigram, units: Sequence[str]) -> None:
        super().__init__()
        self._bigram = bigram
        self._units = tuple(units)
        self._root = _History(BEGIN)

    def start(self, start_with_nothing: bool) -> LMState:
        """State at the begin of a sequence."""
        # The decoder keeps no Python objects alive: the tree of a line stays until the next.
        self._root = _History(BEGIN)
        return self._root

    def score(self, state: _History, usr_token_idx: int) -> tuple[LMState, float]:
        """State after a unit, and ln P of it."""
        followers = state.followers
        if usr_token_idx not in followers:
            unit = self._units[usr_token_idx]
            score = self._bigram.log_prob(unit, *state.memory)
            followers[usr_token_idx] = (_History(unit), score)
        return followers[usr_token_idx]

    def finish(self, state: _History) -> tuple[LMState, float]:
        """Final state, and ln P of the end."""
        return state, self._bigram.log_prob(END, *state.memory)


def kenlm_scorer(bigram: Bigram, units: Sequence[str]) -> Scorer:
    """Give the model to KenLM by an ARPA file, which is removed once it is read.

    Raises:
        ImportError: flashlight-text was built without KenLM.
    """
    from flashlight.lib.text.decoder.kenlm import KenLM

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bigram.arpa"
        bigram.write_arpa(path)
        # ARPA files are in decimal logarithms, and so are KenLM's scores.
        return Scorer(KenLM(str(path), Dictionary(list(units))), math.log(10))


def scorer(bigram: Bigram, units: Sequence[str]) -> Scorer:
    """KenLM where it is there, else the model in Python.

    Args:
        bigram: the model.
        units: its units in the order of the decoder's numbers; each once.
    """
    try:
        return kenlm_scorer(bigram, units)
    except ImportError:
        return Scorer(PythonBigram(bigram, units), 1.0)


class HybridScorer(LM):
    """A :class:`HybridModel` behind flashlight's interface, character by character, in nats.

    A state's memory is the word before, empty at the begin, and the present word so far.

    Args:
        model: the model.
        characters: of the decoder's numbers; a space ends a word.
    """

    def __init__(self, model: HybridModel, characters: Sequence[str]) -> None:
        super().__init__()
        self._model = model
        self._characters = tuple(characters)
        self._root = _History("", "")

    def start(self, start_with_nothing: bool) -> LMState:
        """State at the begin of a line."""
        self._root = _History("", "")
        return self._root

    def score(self, state: _History, usr_token_idx: int) -> tuple[LMState, float]:
        """State after a character, and its score."""
        followers = state.followers
        if usr_token_idx not in followers:
            followers[usr_token_idx] = self._score(state, self._characters[usr_token_idx])
        return followers[usr_token_idx]

    def finish(self, state: _History) -> tuple[LMState, float]:
        """Final state, and the score of the end of the last word and of the line."""
        history, word = state.memory
        if word:
            return state, self._word_end(word, history) + self._model.end_log_prob(word)
        return state, FORBIDDEN if history else self._model.end_log_prob(None)

    def _score(self, state: _History, character: str) -> tuple[_History, float]:
        history, word = state.memory
        if character != " ":
            score = self._model.characters.log_prob(character, word[-1] if word else BEGIN)
            return _History(history, word + character), score
        if not word:
            return _History(history, word), FORBIDDEN
        return _History(word, ""), self._word_end(word, history)

    def _word_end(self, word: str, history: str) -> float:
        """What is missing to the word's probability when its characters have been scored."""
        score = self._model.word_log_prob(word, history or None)
        return score - self._model.spelling_log_prob(word)
