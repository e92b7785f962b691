"""Language models with the interface of the decoders of flashlight-text.

The wheels of flashlight-text contain ``KenLM``. Without it, :class:`PythonBigram` computes the same
scores, several times as slowly.
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
        "beam search requires flashlight-text, which is not installed: pip install flashlight-text "
        "(or decode by best path, which does not require it)"
    ) from error


# Score of consecutive spaces and of spaces at the ends of a line, which normalised texts do not
# contain.
FORBIDDEN = -1e4


class Scorer(NamedTuple):
    """A language model for a decoder.

    Attributes:
        model: model with the interface of flashlight-text.
        nats: factor that converts scores of the model to natural logarithms.
    """

    model: Any
    nats: float


class _History(LMState):
    """The history of a hypothesis, a node of a tree.

    Different histories are different states, even if the model does not distinguish them, because
    the decoder merges all paths with the same state.

    Args:
        context: arguments of the model that depend on the history.
    """

    def __init__(self, *context: str) -> None:
        super().__init__()
        self.context = context
        # Created on demand, because most histories are pruned before they are extended.
        self._followers: dict[int, tuple[_History, float]] | None = None

    @property
    def followers(self) -> dict[int, tuple[_History, float]]:
        """Extended histories and their scores, by index of the added unit."""
        if self._followers is None:
            self._followers = {}
        return self._followers


class PythonBigram(LM):
    """A :class:`Bigram` with the interface of flashlight-text, in nats.

    Args:
        bigram: the model.
        units: units of the model, in the order of the decoder's indices.
    """

    def __init__(self, bigram: Bigram, units: Sequence[str]) -> None:
        super().__init__()
        self._bigram = bigram
        self._units = tuple(units)
        self._root = _History(BEGIN)

    def start(self, start_with_nothing: bool) -> LMState:
        """Return the state at the beginning of a sequence."""
        # The decoder holds no references to Python objects. The root keeps the tree of a line alive
        # until the next line.
        self._root = _History(BEGIN)
        return self._root

    def score(self, state: _History, usr_token_idx: int) -> tuple[LMState, float]:
        """Return the state after a unit, and ln P of the unit."""
        followers = state.followers
        if usr_token_idx not in followers:
            unit = self._units[usr_token_idx]
            score = self._bigram.log_prob(unit, *state.context)
            followers[usr_token_idx] = (_History(unit), score)
        return followers[usr_token_idx]

    def finish(self, state: _History) -> tuple[LMState, float]:
        """Return the final state, and ln P of the end."""
        return state, self._bigram.log_prob(END, *state.context)


def kenlm_scorer(bigram: Bigram, units: Sequence[str]) -> Scorer:
    """Return the model as a KenLM model, through a temporary ARPA file.

    Raises:
        ImportError: if flashlight-text was built without KenLM.
    """
    from flashlight.lib.text.decoder.kenlm import KenLM

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bigram.arpa"
        bigram.write_arpa(path)
        # ARPA files and the scores of KenLM are decimal logarithms.
        return Scorer(KenLM(str(path), Dictionary(list(units))), math.log(10))


def scorer(bigram: Bigram, units: Sequence[str]) -> Scorer:
    """Return the model as a KenLM model if KenLM is installed, else as a :class:`PythonBigram`.

    Args:
        bigram: the model.
        units: different units of the model, in the order of the decoder's indices.
    """
    try:
        return kenlm_scorer(bigram, units)
    except ImportError:
        return Scorer(PythonBigram(bigram, units), 1.0)


class HybridScorer(LM):
    """A :class:`HybridModel` over characters with the interface of flashlight-text, in nats.

    The context of a state is the previous word, empty at the beginning of a line, and the
    characters of the current word.

    Args:
        model: the model.
        characters: characters in the order of the decoder's indices. A space ends a word.
    """

    def __init__(self, model: HybridModel, characters: Sequence[str]) -> None:
        super().__init__()
        self._model = model
        self._characters = tuple(characters)
        self._root = _History("", "")

    def start(self, start_with_nothing: bool) -> LMState:
        """Return the state at the beginning of a line."""
        self._root = _History("", "")
        return self._root

    def score(self, state: _History, usr_token_idx: int) -> tuple[LMState, float]:
        """Return the state after a character, and its score."""
        followers = state.followers
        if usr_token_idx not in followers:
            followers[usr_token_idx] = self._score(state, self._characters[usr_token_idx])
        return followers[usr_token_idx]

    def finish(self, state: _History) -> tuple[LMState, float]:
        """Return the final state, and the score of the end of the last word and of the line."""
        history, word = state.context
        if word:
            return state, self._word_end(word, history) + self._model.end_log_prob(word)
        return state, FORBIDDEN if history else self._model.end_log_prob(None)

    def _score(self, state: _History, character: str) -> tuple[_History, float]:
        history, word = state.context
        if character != " ":
            score = self._model.characters.log_prob(character, word[-1] if word else BEGIN)
            return _History(history, word + character), score
        if not word:
            return _History(history, word), FORBIDDEN
        return _History(word, ""), self._word_end(word, history)

    def _word_end(self, word: str, history: str) -> float:
        """Return the difference of ln P(word | history) and the scores of the characters."""
        score = self._model.word_log_prob(word, history or None)
        return score - self._model.spelling_log_prob(word)
