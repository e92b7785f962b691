"""Lexicon of a corpus, from a dictionary, espeak-ng or the letters of words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from examples.acoustic.corpora.espeak import pronounce
from examples.acoustic.lexicon import Lexicon


def lexicon_for(words: Iterable[str], source: str) -> Lexicon:
    """Return the lexicon of these words.

    Args:
        words: words of all utterances.
        source: ``"espeak"`` for the phones of espeak-ng in American English, ``"graphemes"`` for a
            phone for each character, or the path of a dictionary in the format of CMU's.

    Raises:
        FileNotFoundError: ``source`` is neither ``"espeak"`` nor ``"graphemes"`` nor a file.
        KeyError: the dictionary lacks words. The error lists all of them.
    """
    vocabulary = sorted(set(words))
    if source == "espeak":
        return Lexicon({word: [phones] for word, phones in pronounce(vocabulary).items()})
    if source == "graphemes":
        return Lexicon({word: [tuple(word)] for word in vocabulary})
    if not Path(source).is_file():
        raise FileNotFoundError(
            f"lexicon must be 'espeak', 'graphemes' or the path of a dictionary, got {source!r}"
        )
    lexicon = Lexicon.from_file(source)
    lexicon.check_words(vocabulary)
    return lexicon
