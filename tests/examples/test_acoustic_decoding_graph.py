"""Tests that grammars are probability distributions, and that graphs have their weights."""

from __future__ import annotations

import itertools
import math

import pytest

kaldifst = pytest.importorskip("kaldifst", reason="decoding needs the extra 'examples'")

from examples.acoustic.decoding import (  # noqa: E402
    BigramModel,
    Grammar,
    HMMTopology,
    build_graph,
)
from examples.acoustic.lexicon import Lexicon  # noqa: E402
from examples.acoustic.senones import SenoneMap  # noqa: E402

TEXT = [["x", "y"], ["x", "y", "z"], ["y", "x"], ["z"], ["x", "x", "y"]]
LEXICON = Lexicon.from_dict({"x": "k s", "y": ["i", "k s"], "z": "k", "w": "s i k"})
SENONES = SenoneMap(phones=("sil", *LEXICON.phones))


def best_log_prob(grammar: Grammar, words: tuple[str, ...]) -> float:
    """Log probability of the best path through the arcs that accepts the words."""
    by_source: dict[int, list] = {}
    for arc in grammar.arcs():
        by_source.setdefault(arc.source, []).append(arc)

    def best(state: int, rest: tuple[str, ...]) -> float:
        candidates = [-math.inf]
        if not rest and state in grammar.final_log_probs():
            candidates.append(grammar.final_log_probs()[state])
        for arc in by_source.get(state, []):
            if arc.word is None and rest:
                candidates.append(arc.log_prob + best(arc.target, rest))
            elif rest and arc.word == rest[0]:
                candidates.append(arc.log_prob + best(arc.target, rest[1:]))
        return max(candidates)

    return best(0, words)


def test_bigram_arcs_give_the_probability_of_the_formula() -> None:
    model = BigramModel(TEXT, LEXICON.words)
    for words in itertools.product(LEXICON.words, repeat=3):
        events = (*words, None)
        expected = sum(model.log_prob(e, h) for h, e in zip((None, *words), events, strict=True))
        assert best_log_prob(model, words) == pytest.approx(expected)


@pytest.mark.parametrize("skip", [0.0, 0.3])
def test_graph_weighs_the_words_by_the_grammar(skip: float) -> None:
    """Without silence, the best path of one-frame states costs the topology plus the grammar."""
    model = BigramModel(TEXT, LEXICON.words)
    topology = HMMTopology(silence=0.0, skip=skip)
    graph = build_graph(SENONES, LEXICON, model, topology=topology, word_insertion_penalty=1.5)
    senones = [s for phone in ("k", "s", "i", "k", "s") for s in SENONES.of(phone)]
    linear = kaldifst.make_linear_acceptor([s + 1 for s in senones])
    path = kaldifst.shortest_path(kaldifst.compose(linear, graph.fst))
    _, _, labels, weight = kaldifst.get_linear_symbol_sequence(path)
    assert [graph.words[label - 1] for label in labels] == ["x", "y", "x"]
    # Each of five phones has an entry at state 0, two advances without skip, and one exit. An
    # advance or an exit has a probability of one half, as the loop has.
    enter = (1 - skip) / (1 - skip**3)
    hmm = 5 * math.log(enter * (0.5 * (1 - skip)) ** 2 * 0.5)
    grammar = sum(
        model.log_prob(e, h) for h, e in [(None, "x"), ("x", "y"), ("y", "x"), ("x", None)]
    )
    assert weight.value == pytest.approx(-hmm - grammar + 3 * 1.5, rel=1e-4)
