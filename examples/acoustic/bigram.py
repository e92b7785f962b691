"""Grammar over words: a bigram with back-off."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class GrammarArc(NamedTuple):
    """Transition of the grammar. ``word`` is None in a back-off transition, which has no word."""

    source: int
    target: int
    word: str | None
    log_prob: float


class BigramModel:
    """Bigram model with Witten-Bell smoothing and back-off arcs.

    ``P(w | h) = (c(h, w) + T(h) P(w)) / (c(h) + T(h))``, where ``T(h)`` is the number of different
    words observed after ``h``. The unigram ``P(w)`` is smoothed by the uniform distribution in the
    same way (Witten and Bell, 1991, method C, interpolated). The end of a sentence is an event. The
    probabilities of all words and of the end sum to one after every history.

    Args:
        sentences: training sentences.
        vocabulary: further words, which the sentences need not contain.

    Raises:
        ValueError: there are no sentences, or all of them are empty.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], vocabulary: Iterable[str]) -> None:
        self._counts: defaultdict[str | None, Counter[str | None]] = defaultdict(Counter)
        for sentence in sentences:
            if sentence:
                # None is the start of the sentence as a history, and the end as an event.
                for history, event in zip((None, *sentence), (*sentence, None), strict=True):
                    self._counts[history][event] += 1
        if not self._counts:
            raise ValueError(
                "a bigram grammar needs training transcripts: pass the checkpoint of a trained "
                "model (--ckpt_path), or add a train split"
            )
        observed = dict.fromkeys(e for c in self._counts.values() for e in c if e is not None)
        self.words = tuple(dict.fromkeys((*observed, *vocabulary)))
        self._unigram = self._estimate_unigram()

    def log_prob(self, word: str | None, history: str | None) -> float:
        """Return log P(word | history).

        Args:
            word: word, or None for the end of the sentence.
            history: word before it, or None for the start of the sentence.
        """
        lower = self._unigram[word]
        followers = self._counts.get(history)
        if followers is None:
            return math.log(lower)
        total, kinds = followers.total(), len(followers)
        return math.log((followers[word] + kinds * lower) / (total + kinds))

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield the arcs of observed bigrams, the back-off arcs and the arcs of unigrams.

        State 0 is the start, state 1 the unigram, and state 2 + i the history of word i. Observed
        bigrams also have a path by back-off, whose probability is never higher. So the best path
        has the probability of the model.
        """
        state = {word: 2 + i for i, word in enumerate(self.words)}
        for history in (None, *self.words):
            source = 0 if history is None else state[history]
            for word in self._counts.get(history, ()):
                if word is not None:
                    log_prob = self.log_prob(word, history)
                    yield GrammarArc(source, state[word], word, log_prob)
            yield GrammarArc(source, 1, None, self._backoff_log_prob(history))
        for word in self.words:
            yield GrammarArc(1, state[word], word, math.log(self._unigram[word]))

    def final_log_probs(self) -> Mapping[int, float]:
        """Return log P(end | word) for the states of words. Other states are not final."""
        return {2 + i: self.log_prob(None, word) for i, word in enumerate(self.words)}

    def _estimate_unigram(self) -> dict[str | None, float]:
        events: tuple[str | None, ...] = (*self.words, None)
        counts: Counter[str | None] = Counter()
        for followers in self._counts.values():
            counts.update(followers)
        total, kinds = counts.total(), len(counts)
        return {e: (counts[e] + kinds / len(events)) / (total + kinds) for e in events}

    def _backoff_log_prob(self, history: str | None) -> float:
        followers = self._counts.get(history)
        if followers is None:
            return 0.0
        return math.log(len(followers) / (followers.total() + len(followers)))
