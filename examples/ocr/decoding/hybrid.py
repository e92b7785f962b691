"""A hybrid 2-gram model over words and characters, with an open vocabulary.

bmuf_adam 3.1 decodes with a 2-gram model over words and sub-words. Here, the sub-words are
characters. A line is a sequence of words. A word 2-gram model contains the words of the lexicon, a
character 2-gram model spells the others::

    P(w | h) = P_word(w | h)                     w in the lexicon
    P(w | h) = P_word(<other> | h) P_char(w)     otherwise

The decoder scores each character by P_char. At the end of a word, it adds the difference to
ln P(w | h). The score of a complete line is therefore the probability of the model, and that of an
incomplete line an estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from examples.ocr.decoding.language_model import BEGIN, END, Bigram

_OTHER = "<other>"


class HybridModel:
    """Word 2-gram model that spells unknown words by a character 2-gram model.

    Args:
        texts: lines of text.
        alphabet: characters of the words.
        min_count: minimum number of occurrences of a word in the lexicon. The others count as
            unknown words, so that the model also learns their probability.

    Raises:
        ValueError: if there is no text with words.
    """

    def __init__(self, texts: Iterable[str], alphabet: Iterable[str], *, min_count: int = 2):
        lines = [text.split() for text in texts]
        counts = Counter(word for words in lines for word in words)
        self.lexicon = {word for word, count in counts.items() if count >= min_count}
        self.words = Bigram([[self._unit(w) for w in words] for words in lines], [_OTHER])
        characters = [character for character in alphabet if not character.isspace()]
        self.characters = Bigram((list(word) for word in counts), characters)

    def _unit(self, word: str) -> str:
        # The prefix distinguishes words from the symbols of the model, such as "<s>".
        return f"={word}" if word in self.lexicon else _OTHER

    def spelling_log_prob(self, word: str) -> float:
        """Return ln P_char of the characters of a word, without the end of the word."""
        pairs = zip((BEGIN, *word), word, strict=False)
        return sum(self.characters.log_prob(character, before) for before, character in pairs)

    def word_log_prob(self, word: str, history: str | None) -> float:
        """Return ln P(word | history). The history at the beginning of a line is None."""
        score = self.words.log_prob(self._unit(word), self._history(history))
        if word in self.lexicon:
            return score
        end = self.characters.log_prob(END, word[-1])
        return score + self.spelling_log_prob(word) + end

    def end_log_prob(self, history: str | None) -> float:
        """Return ln P(end of line | history)."""
        return self.words.log_prob(END, self._history(history))

    def _history(self, history: str | None) -> str:
        return BEGIN if history is None else self._unit(history)

    def text_log_prob(self, text: str) -> float:
        """Return ln P(text) of a line."""
        score, history = 0.0, None
        for word in text.split():
            score += self.word_log_prob(word, history)
            history = word
        return score + self.end_log_prob(history)
