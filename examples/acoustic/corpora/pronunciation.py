"""A lexicon for the words of a corpus that comes without one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from examples.acoustic.corpora.espeak import pronounce
from examples.acoustic.lexicon import Lexicon


def lexicon_for(words: Iterable[str], source: str) -> Lexicon:
    """Pronunciations of ``words``.

    Args:
        words: of all utterances.
        source: ``"espeak"``, the phones that espeak-ng speaks in American English;
            ``"graphemes"``, each character a phone of its own; or the path of a dictionary in the
            format of CMU's.

    Raises:
        FileNotFoundError: if ``source`` is neither of the two words nor a file.
        KeyError: if the dictionary lacks words; it names them.
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
