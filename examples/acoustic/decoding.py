"""Hybrid decoding of senone log likelihoods to words, by weighted finite-state transducers.

The decoding graph is the composition of H, which maps senones to phones, L, which maps phones to
words with optional silence, and the grammar G. Auxiliary labels distinguish homophones while L and
G are composed and determinised. All weights are costs, that is negative log probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import kaldifst
import numpy as np
from kaldi_decoder import DecodableCtc, FasterDecoder, FasterDecoderOptions
from kaldifst import StdArc, StdVectorFst
from torch import Tensor

from examples.acoustic.bigram import BigramModel
from examples.acoustic.lexicon import SILENCE, Lexicon, SenoneMap

EPSILON = 0

# Factor of the log likelihoods. It is below 1, because adjacent frames are not independent.
_ACOUSTIC_SCALE = 0.6
# Largest difference in cost between a path and the best path, and number of active states.
_BEAM, _MAX_ACTIVE = 16.0, 7000
# Probability of another frame in the same state, and of skipping a state: at 33 frames/s, phones
# may have fewer frames than states. At least one state of a phone is not skipped.
_SELF_LOOP, _SKIP = 0.5, 0.3
# Probability of silence before the first word, and after each word.
_PAUSE = 0.5


class WFSTDecoder:
    """Decoder from log likelihoods of senones to the best sequence of words.

    Every rank builds its decoder from senones, lexicon and grammar, so decoders are never pickled.

    Args:
        senones: numbering of the senones of the acoustic model.
        lexicon: pronunciations of the words of the grammar.
        grammar: grammar over all words of the lexicon.

    Raises:
        KeyError: words of the grammar have no pronunciation.
    """

    def __init__(self, senones: SenoneMap, lexicon: Lexicon, grammar: BigramModel) -> None:
        lexicon.check_words(grammar.words)
        self._words = lexicon.words
        self._graph = _graph(senones, lexicon, grammar)
        self._options = FasterDecoderOptions(beam=_BEAM, max_active=_MAX_ACTIVE)

    def decode(self, log_likelihoods: Tensor) -> list[str]:
        """Return the words of the best path.

        If no path in the beam ends in a final state of the grammar, the best partial path is used.

        Args:
            log_likelihoods: (T, S) natural logarithms of likelihoods, up to a constant for each
                frame.

        Raises:
            ValueError: values are not finite, or no path has so few frames.
        """
        scores = (log_likelihoods.detach().float() * _ACOUSTIC_SCALE).cpu()
        if not bool(scores.isfinite().all()):
            raise ValueError("log_likelihoods must be finite, got NaN or infinity")
        # A new decoder for each utterance, because a decoder keeps the paths of the last one.
        decoder = FasterDecoder(self._graph, self._options)
        decoder.decode(DecodableCtc(np.ascontiguousarray(scores.numpy())))
        succeeded, path = decoder.get_best_path(use_final_probs=decoder.reached_final())
        if not succeeded:
            raise ValueError(f"no path through the graph survived {len(scores)} frames")
        _, _, labels, _ = kaldifst.get_linear_symbol_sequence(path)
        return [self._words[label - 1] for label in labels]


@dataclass(frozen=True)
class _Symbols:
    """Labels of phones, words and auxiliary symbols. Label 0 is always epsilon."""

    phones: Mapping[str, int]
    words: Mapping[str, int]
    silence: int
    backoff_word: int  # label of back-off in the composition of L and G

    def auxiliary_phone(self, number: int) -> int:
        """Return the label of an auxiliary phone.

        Number 0 is back-off, and number 1 the end of a silence. Higher numbers distinguish
        pronunciations.
        """
        return len(self.phones) + 1 + number


def _graph(senones: SenoneMap, lexicon: Lexicon, grammar: BigramModel) -> StdVectorFst:
    """Compose H, L and G. Input labels are senone + 1, output labels position of the word + 1."""
    symbols = _Symbols(
        phones={phone: i for i, phone in enumerate(senones.phones, 1)},
        words={word: i for i, word in enumerate(lexicon.words, 1)},
        silence=senones.phones.index(SILENCE) + 1,
        backoff_word=len(lexicon.words) + 1,
    )
    l_fst, auxiliaries = _lexicon_fst(lexicon, symbols)
    lg = kaldifst.compose(l_fst, _grammar_fst(grammar, symbols))
    kaldifst.determinize_star(lg)
    kaldifst.minimize_encoded(lg)
    kaldifst.arcsort(lg, sort_type="ilabel")
    hlg = kaldifst.compose(_hmm_fst(senones, symbols, auxiliaries), lg)
    kaldifst.connect(hlg)
    return hlg


def _grammar_fst(grammar: BigramModel, symbols: _Symbols) -> StdVectorFst:
    """Return G, from words to words. The label of back-off makes L∘G determinisable."""
    arcs = list(grammar.arcs())
    fst = _with_states(1 + max(max(arc.source, arc.target) for arc in arcs))
    for arc in arcs:
        label = symbols.backoff_word if arc.word is None else symbols.words[arc.word]
        output = EPSILON if arc.word is None else label
        fst.add_arc(arc.source, StdArc(label, output, -arc.log_prob, arc.target))
    for state, log_prob in grammar.final_log_probs().items():
        fst.set_final(state, -log_prob)
    kaldifst.arcsort(fst, sort_type="ilabel")
    return fst


def _lexicon_fst(lexicon: Lexicon, symbols: _Symbols) -> tuple[StdVectorFst, int]:
    """Return L, from phones to words, with optional silence at the start and after each word.

    Returns:
        The transducer, and the number of its auxiliary phones.
    """
    start, loop, silence = 0, 1, 2
    fst = _with_states(3)
    before_loop = fst.add_state()
    fst.add_arc(silence, StdArc(symbols.silence, EPSILON, 0.0, before_loop))
    fst.add_arc(before_loop, StdArc(symbols.auxiliary_phone(1), EPSILON, 0.0, loop))

    def with_or_without_silence(state: int) -> None:
        fst.add_arc(state, StdArc(EPSILON, EPSILON, -math.log1p(-_PAUSE), loop))
        fst.add_arc(state, StdArc(EPSILON, EPSILON, -math.log(_PAUSE), silence))

    with_or_without_silence(start)
    shared = _shared_prefixes(lexicon)
    next_number: dict[tuple[str, ...], int] = {}
    for word in lexicon.words:
        for phones in lexicon.pronunciations(word):
            labels = [symbols.phones[phone] for phone in phones]
            if phones in shared:
                number = next_number[phones] = next_number.get(phones, 1) + 1
                labels.append(symbols.auxiliary_phone(number))
            with_or_without_silence(_add_chain(fst, loop, labels, symbols.words[word]))
    fst.add_arc(loop, StdArc(symbols.auxiliary_phone(0), symbols.backoff_word, 0.0, loop))
    fst.set_final(loop, 0.0)
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst, max(next_number.values(), default=1) + 1


def _shared_prefixes(lexicon: Lexicon) -> set[tuple[str, ...]]:
    """Return the pronunciations that several words share, or that are a prefix of another one."""
    counts: dict[tuple[str, ...], int] = {}
    prefixes: set[tuple[str, ...]] = set()
    for word in lexicon.words:
        for phones in lexicon.pronunciations(word):
            counts[phones] = counts.get(phones, 0) + 1
            prefixes.update(phones[:i] for i in range(1, len(phones)))
    return {phones for phones, count in counts.items() if count > 1 or phones in prefixes}


def _add_chain(fst: StdVectorFst, source: int, labels: list[int], output: int) -> int:
    """Add a chain of states with these input labels, and return its last state.

    The first arc has the output label.
    """
    for label in labels:
        target = fst.add_state()
        fst.add_arc(source, StdArc(label, output, 0.0, target))
        source, output = target, EPSILON
    return source


def _hmm_fst(senones: SenoneMap, symbols: _Symbols, auxiliaries: int) -> StdVectorFst:
    """Return H, from senones to phones: an HMM for each phone, all of which share one state.

    Auxiliary phones have no frames. They become epsilon here, because the graph is not determinised
    after the composition with H.
    """
    hub = 0
    fst = _with_states(1)
    fst.set_final(hub, 0.0)
    for number in range(auxiliaries):
        fst.add_arc(hub, StdArc(EPSILON, symbols.auxiliary_phone(number), 0.0, hub))
    for phone, phone_label in symbols.phones.items():
        ids = senones.of(phone)
        states = [fst.add_state() for _ in ids]
        for target, cost in _entry_costs(len(ids)).items():
            fst.add_arc(hub, StdArc(ids[target] + 1, phone_label, cost, states[target]))
        for i, state in enumerate(states):
            fst.add_arc(state, StdArc(ids[i] + 1, EPSILON, -math.log(_SELF_LOOP), state))
            for target, cost in _exit_costs(i, len(ids)).items():
                if target == len(ids):
                    fst.add_arc(state, StdArc(EPSILON, EPSILON, cost, hub))
                else:
                    arc = StdArc(ids[target] + 1, EPSILON, cost, states[target])
                    fst.add_arc(state, arc)
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst


def _entry_costs(states: int) -> dict[int, float]:
    """Return the cost of entering a phone at each state. At least one state is not skipped."""
    weights = {i: _SKIP**i * (1.0 - _SKIP) for i in range(states)}
    total = sum(weights.values())
    return {i: -math.log(weight / total) for i, weight in weights.items()}


def _exit_costs(state: int, states: int) -> dict[int, float]:
    """Return the cost from a state to each later one. The exit is the number of states."""
    weights = {j: _SKIP ** (j - state - 1) for j in range(state + 1, states + 1)}
    return {
        j: -math.log((1.0 - _SELF_LOOP) * weight * (1.0 if j == states else 1.0 - _SKIP))
        for j, weight in weights.items()
    }


def _with_states(count: int) -> StdVectorFst:
    """Return a transducer with states 0 to count - 1, of which 0 is the start, and no arcs."""
    fst = StdVectorFst()
    for _ in range(count):
        fst.add_state()
    fst.start = 0
    return fst
