"""Grammars over words: a loop of words, a list of sentences, and a bigram with back-off.

A grammar is a weighted automaton over words, represented by a sequence of arcs. ``graph.py``
converts it to a transducer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class GrammarArc(NamedTuple):
    """Transition of a grammar. ``word`` is None in a back-off transition, which has no word."""

    source: int
    target: int
    word: str | None
    log_prob: float


class Grammar(Protocol):
    """Interface of grammars. States are numbered from 0, the start state."""

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the grammar."""

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield every transition: at most one for a state and a word, or a state and None."""

    def final_log_probs(self) -> Mapping[int, float]:
        """Return the final log probability of each final state."""


class WordLoop:
    """Any sequence of at least one word, in which words are independent.

    Words have unigram log probabilities. The end of the sentence has no cost, so only the acoustic
    scores determine the length of sentences.
    """

    def __init__(self, words: Iterable[str], log_probs: Mapping[str, float] | None = None) -> None:
        """Create a loop of words.

        Args:
            words: words of the loop.
            log_probs: log probability of each word. None: all words are equally probable.

        Raises:
            ValueError: there are no words, or a word has no log probability.
        """
        self._words = tuple(dict.fromkeys(words))
        if not self._words:
            raise ValueError("a word loop needs at least one word, got none")
        uniform = -math.log(len(self._words))
        self._log_probs = dict.fromkeys(self._words, uniform) if log_probs is None else log_probs
        missing = [word for word in self._words if word not in self._log_probs]
        if missing:
            raise ValueError(f"words without log probability: {missing}; add one for every word")

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the loop."""
        return self._words

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield an arc from the start state and an arc of the loop for each word."""
        for source in (0, 1):
            for word in self._words:
                yield GrammarArc(source, 1, word, self._log_probs[word])

    def final_log_probs(self) -> Mapping[int, float]:
        """Return the final state, which is the state after any word."""
        return {1: 0.0}


class SentenceList:
    """A list of equally probable sentences. Repetitions increase the probability."""

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        """Build the prefix tree of the sentences.

        Raises:
            ValueError: there is no sentence, or one has no words.
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
        """Yield the edges of the tree, weighted by the fraction of sentences with this edge."""
        for (source, word), target in self._tree.items():
            fraction = self._visits[target] / self._visits[source]
            yield GrammarArc(source, target, word, math.log(fraction))

    def final_log_probs(self) -> Mapping[int, float]:
        """Return the log probability that a sentence ends in each final state."""
        return {s: math.log(n / self._visits[s]) for s, n in self._ends.items()}


class BigramModel:
    """Bigram model with Witten-Bell smoothing and back-off arcs.

    ``P(w | h) = (c(h, w) + T(h) P(w)) / (c(h) + T(h))``, where ``T(h)`` is the number of different
    words observed after ``h``. The unigram ``P(w)`` is smoothed by the uniform distribution in the
    same way (Witten and Bell, 1991, method C, interpolated). The end of a sentence is an event. The
    probabilities of all words and of the end sum to one after every history.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], vocabulary: Iterable[str] = ()) -> None:
        """Estimate the model.

        Args:
            sentences: training sentences.
            vocabulary: further words, which the sentences need not contain.

        Raises:
            ValueError: there are no sentences, or all of them are empty.
        """
        self._counts: defaultdict[str | None, Counter[str | None]] = defaultdict(Counter)
        for sentence in sentences:
            if sentence:
                # None is the start of the sentence as a history, and the end as an event.
                for history, event in zip((None, *sentence), (*sentence, None), strict=True):
                    self._counts[history][event] += 1
        observed = dict.fromkeys(e for c in self._counts.values() for e in c if e is not None)
        if not observed:
            raise ValueError("a bigram model needs at least one sentence with words, got none")
        self._words = tuple(dict.fromkeys((*observed, *vocabulary)))
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
        """Return log P(word | history).

        Args:
            word: word, or None for the end of the sentence.
            history: word before it, or None for the start of the sentence.

        Raises:
            KeyError: the word or the history is not in the vocabulary.
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
        """Return the perplexity of sentences. The end of a sentence is an event."""
        log_prob, events = 0.0, 0
        for sentence in sentences:
            for history, event in zip((None, *sentence), (*sentence, None), strict=True):
                log_prob += self.log_prob(event, history)
                events += 1
        if not events:
            raise ValueError("perplexity needs at least one sentence, got none")
        return math.exp(-log_prob / events)

    def arcs(self) -> Iterator[GrammarArc]:
        """Yield the arcs of observed bigrams, the back-off arcs and the arcs of unigrams.

        State 0 is the start, state 1 the unigram, and state 2 + i the history of word i. Observed
        bigrams also have a path by back-off, whose probability is never higher. So the best path
        has the probability of the model.
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
        """Return log P(end | word) for the states of words. Other states are not final."""
        return {2 + i: self.log_prob(None, word) for i, word in enumerate(self._words)}
