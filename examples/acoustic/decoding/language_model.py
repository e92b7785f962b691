"""Word grammars: a free loop of words, a list of sentences, a bigram with back-off.

A grammar is a weighted automaton over words, written as plain arcs so that it can be read, tested
and summed without any decoder. ``graph.py`` turns it into a transducer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class GrammarArc(NamedTuple):
    """One transition; ``word`` is None where it leads to the lower order without a word."""

    source: int
    target: int
    word: str | None
    log_prob: float


class Grammar(Protocol):
    """What the decoding graph needs of a grammar: states are numbered from 0, 0 is the start."""

    @property
    def words(self) -> tuple[str, ...]:
        """All words that the grammar can produce."""

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield every transition; at most one per state and word, at most one without a word."""

    def final_log_probs(self) -> Mapping[int, float]:
        """Return the log probability of ending per state that may end."""


class WordLoop:
    """Any sequence of at least one word, all words independent of each other.

    A word's log probability is that of a unigram; ending costs nothing, as the length of the
    sentence is left to the acoustics.
    """

    def __init__(self, words: Iterable[str], log_probs: Mapping[str, float] | None = None) -> None:
        """Take the words and, unless all are equally probable, their log probabilities.

        Raises:
            ValueError: no words, or a word without a log probability.
        """
        self._words = tuple(dict.fromkeys(words))
        if not self._words:
            raise ValueError("a word loop needs at least one word, got none")
        uniform = -math.log(len(self._words))
        self._log_probs = dict.fromkeys(self._words, uniform) if log_probs is None else log_probs
        missing = [word for word in self._words if word not in self._log_probs]
        if missing:
            raise ValueError(f"words without log probability: {missing}; give one for every word")

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the loop."""
        return self._words

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield an arc out of the start and an arc of the loop per word."""
        for source in (0, 1):
            for word in self._words:
                yield GrammarArc(source, 1, word, self._log_probs[word])

    def final_log_probs(self) -> Mapping[int, float]:
        """End after any word."""
        return {1: 0.0}


class SentenceList:
    """Exactly these sentences, equally probable (a sentence given twice counts twice)."""

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        """Build the tree of the sentences' prefixes.

        Raises:
            ValueError: no sentence, or one without words.
        """
        self._tree: dict[tuple[int, str], int] = {}
        self._visits: Counter[int] = Counter()
        self._ends: Counter[int] = Counter()
        for sentence in sentences:
            if not sentence:
                raise ValueError("a sentence of a list grammar needs at least one word, got none")
            self._add(sentence)
        if not self._ends:
            raise ValueError("a list grammar needs at least one sentence, got none")

    def _add(self, sentence: Sequence[str]) -> None:
        state = 0
        self._visits[state] += 1
        for word in sentence:
            state = self._tree.setdefault((state, word), len(self._tree) + 1)
            self._visits[state] += 1
        self._ends[state] += 1

    @property
    def words(self) -> tuple[str, ...]:
        """All words of all sentences, in order of their first use."""
        return tuple(dict.fromkeys(word for _, word in self._tree))

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield the edges of the tree, each weighted by the share of sentences that take it."""
        for (source, word), target in self._tree.items():
            share = self._visits[target] / self._visits[source]
            yield GrammarArc(source, target, word, math.log(share))

    def final_log_probs(self) -> Mapping[int, float]:
        """End where a sentence ends."""
        return {s: math.log(n / self._visits[s]) for s, n in self._ends.items()}


class BigramModel:
    """Bigram over words with Witten-Bell smoothing, written with back-off arcs.

    ``P(w | h) = (c(h, w) + T(h) P(w)) / (c(h) + T(h))``, where ``T(h)`` counts the different words
    seen after ``h``; the unigram ``P(w)`` is smoothed by the uniform distribution in the same way.
    (Witten and Bell, 1991, method C, interpolated.) Ending the sentence is one of the events, so
    the probabilities of all words and of the end sum to one after every history.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], vocabulary: Iterable[str] = ()) -> None:
        """Estimate from sentences; ``vocabulary`` adds words that the sentences do not contain.

        Raises:
            ValueError: no sentences, or only empty ones.
        """
        self._counts: defaultdict[str | None, Counter[str | None]] = defaultdict(Counter)
        for sentence in sentences:
            if sentence:
                # None as history is the begin of the sentence, None as event its end.
                for history, event in zip((None, *sentence), (*sentence, None), strict=True):
                    self._counts[history][event] += 1
        seen = dict.fromkeys(e for c in self._counts.values() for e in c if e is not None)
        if not seen:
            raise ValueError("a bigram model needs at least one sentence with words, got none")
        self._words = tuple(dict.fromkeys((*seen, *vocabulary)))
        self._unigram = self._estimate_unigram()

    def _estimate_unigram(self) -> dict[str | None, float]:
        events: tuple[str | None, ...] = (*self._words, None)
        counts: Counter[str | None] = Counter()
        for followers in self._counts.values():
            counts.update(followers)
        total, kinds = counts.total(), len(counts)
        return {e: (counts[e] + kinds / len(events)) / (total + kinds) for e in events}

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the vocabulary."""
        return self._words

    def log_prob(self, word: str | None, history: str | None) -> float:
        """Return log P(word | history); None is the end (word) or the begin (history).

        Raises:
            KeyError: the word or the history is outside the vocabulary.
        """
        if history is not None and history not in self._unigram:
            raise KeyError(f"history {history!r} is not among the {len(self._words)} words")
        if word not in self._unigram:
            raise KeyError(f"word {word!r} is not among the {len(self._words)} words")
        lower = self._unigram[word]
        followers = self._counts.get(history)
        if followers is None:
            return math.log(lower)
        total, kinds = followers.total(), len(followers)
        return math.log((followers[word] + kinds * lower) / (total + kinds))

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> float:
        """Return the perplexity per event; the end of a sentence is an event."""
        log_prob, events = 0.0, 0
        for sentence in sentences:
            for history, event in zip((None, *sentence), (*sentence, None), strict=True):
                log_prob += self.log_prob(event, history)
                events += 1
        if not events:
            raise ValueError("perplexity needs at least one sentence, got none")
        return math.exp(-log_prob / events)

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield the seen bigrams, the way to the unigram, and the unigrams.

        State 0 is the begin, state 1 the unigram, state 2 + i the history of word i. A seen pair
        can also be read through the unigram, but never at a better price, so that the best path
        has the model's probability.
        """
        state = {word: 2 + i for i, word in enumerate(self._words)}
        for history in (None, *self._words):
            source = 0 if history is None else state[history]
            for word in self._counts.get(history, ()):
                if word is not None:
                    log_prob = self.log_prob(word, history)
                    yield GrammarArc(source, state[word], word, log_prob)
            yield GrammarArc(source, 1, None, self._backoff_log_prob(history))
        for word in self._words:
            yield GrammarArc(1, state[word], word, math.log(self._unigram[word]))

    def _backoff_log_prob(self, history: str | None) -> float:
        followers = self._counts.get(history)
        if followers is None:
            return 0.0
        return math.log(len(followers) / (followers.total() + len(followers)))

    def final_log_probs(self) -> Mapping[int, float]:
        """End after any word with P(end | word); never at the begin, never at the unigram."""
        return {2 + i: self.log_prob(None, word) for i, word in enumerate(self._words)}
