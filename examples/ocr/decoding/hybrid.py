"""A hybrid 2-gram over words and characters: an open vocabulary with the memory of words.

bmuf_adam 3.1 decodes with a 2-gram whose lexicon holds words and sub-words; here the sub-words are
characters. A line is a sequence of words; a word of the lexicon is one unit of a word 2-gram, any
other is spelt by a character 2-gram::

    P(w | h) = P_word(w | h)                     w in the lexicon
    P(w | h) = P_word(<other> | h) P_char(w)     otherwise

The decoder works character by character. Within a word each character is scored by P_char, and what
is missing to P(w | h) is settled at the word's end, so that a finished line has exactly the model's
probability and an unfinished one a fair estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from examples.ocr.decoding.language_model import BEGIN, END, Bigram

_OTHER = "<other>"


class HybridModel:
    """Word 2-gram that falls back on spelling.

    Args:
        texts: lines of text.
        alphabet: characters that words may have.
        min_count: words seen less often are spelt, so that the model learns how others look.

    Raises:
        ValueError: no text with words.
    """

    def __init__(self, texts: Iterable[str], alphabet: Iterable[str], *, min_count: int = 2):
        lines = [text.split() for text in texts]
        counts = Counter(word for words in lines for word in words)
        self.lexicon = {word for word, count in counts.items() if count >= min_count}
        self.words = Bigram([[self._unit(w) for w in words] for words in lines], [_OTHER])
        characters = [character for character in alphabet if not character.isspace()]
        self.characters = Bigram((list(word) for word in counts), characters)

    def _unit(self, word: str) -> str:
        # The prefix keeps words apart from the marks of the model.
        return f"={word}" if word in self.lexicon else _OTHER

    def spelling_log_prob(self, word: str) -> float:
        """Return ln P_char of the characters of a word, without its end."""
        pairs = zip((BEGIN, *word), word, strict=False)
        return sum(self.characters.log_prob(character, before) for before, character in pairs)

    def word_log_prob(self, word: str, history: str | None) -> float:
        """Return ln P(word | history); None is the begin of a line."""
        score = self.words.log_prob(self._unit(word), self._history(history))
        if word in self.lexicon:
            return score
        end = self.characters.log_prob(END, word[-1])
        return score + self.spelling_log_prob(word) + end

    def end_log_prob(self, history: str | None) -> float:
        """Return ln P of the line's end after a word."""
        return self.words.log_prob(END, self._history(history))

    def _history(self, history: str | None) -> str:
        return BEGIN if history is None else self._unit(history)

    def text_log_prob(self, text: str) -> float:
        """Return ln P of a line."""
        score, history = 0.0, None
        for word in text.split():
            score += self.word_log_prob(word, history)
            history = word
        return score + self.end_log_prob(history)
