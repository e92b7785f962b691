"""Decoding graph from senones to words: the composition of the transducers H, L and G.

H maps senones to phones, L maps phones to words with optional silence, and G is the grammar.
Auxiliary labels distinguish homophones while L and G are composed and determinised. All weights are
costs, that is negative log probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import kaldifst
from kaldifst import StdArc, StdVectorFst

from examples.acoustic.decoding.language_model import Grammar
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SILENCE, SenoneMap

EPSILON = 0


@dataclass(frozen=True, kw_only=True)
class HMMTopology:
    """Transition probabilities of a left-to-right HMM of a phone.

    Attributes:
        self_loop: probability of another frame in the same state.
        skip: probability of skipping a state. At 33 frames/s, phones may have fewer frames than
            states. At least one state of a phone is not skipped.
        silence: probability of silence before the first word, and after each word.

    Raises:
        ValueError: a probability is out of range.
    """

    self_loop: float = 0.5
    skip: float = 0.0
    silence: float = 0.5

    @classmethod
    def for_low_frame_rate(cls) -> HMMTopology:
        """Return the probabilities for phones of three states at 33 frames/s."""
        return cls(self_loop=0.3, skip=0.25)

    def __post_init__(self) -> None:
        """Check the probabilities."""
        for name, bracket in (("self_loop", "("), ("skip", "["), ("silence", "[")):
            value = getattr(self, name)
            if not (0.0 < value < 1.0 or (bracket == "[" and value == 0.0)):
                raise ValueError(f"{name} must be in {bracket}0, 1), got {value}")


@dataclass(frozen=True)
class DecodingGraph:
    """Composed transducer.

    Attributes:
        fst: transducer with input labels senone + 1, and output labels position in ``words`` + 1.
        words: words of the grammar.
    """

    fst: StdVectorFst
    words: tuple[str, ...]


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


def build_graph(
    senones: SenoneMap,
    lexicon: Lexicon,
    grammar: Grammar,
    *,
    topology: HMMTopology,
    word_insertion_penalty: float = 0.0,
    silence_phone: str = SILENCE,
) -> DecodingGraph:
    """Compose H, L and G for the words of the grammar.

    Args:
        senones: numbering of the senones of the acoustic model.
        lexicon: pronunciations of at least the words of the grammar.
        grammar: grammar over words.
        topology: transition probabilities of the HMM and of optional silence.
        word_insertion_penalty: cost that is added to each word. It may be negative.
        silence_phone: phone of optional silence.

    Raises:
        KeyError: words of the grammar have no pronunciation. The error lists all of them.
        ValueError: phones have no senones. The error lists all of them.
    """
    lexicon.check_words(grammar.words)
    used = lexicon.restricted_to(grammar.words)
    missing = sorted({*used.phones, silence_phone} - set(senones.phones))
    if missing:
        raise ValueError(
            f"phones without senones: {missing}; phones with senones are {senones.phones}"
        )
    symbols = _Symbols(
        phones={phone: i for i, phone in enumerate(senones.phones, 1)},
        words={word: i for i, word in enumerate(used.words, 1)},
        silence=senones.phones.index(silence_phone) + 1,
        backoff_word=len(used) + 1,
    )
    l_fst, auxiliaries = _lexicon_fst(used, symbols, topology, word_insertion_penalty)
    lg = kaldifst.compose(l_fst, _grammar_fst(grammar, symbols))
    kaldifst.determinize_star(lg)
    kaldifst.minimize_encoded(lg)
    kaldifst.arcsort(lg, sort_type="ilabel")
    h_fst = _hmm_fst(senones, symbols, topology, auxiliaries)
    hlg = kaldifst.compose(h_fst, lg)
    kaldifst.connect(hlg)
    return DecodingGraph(fst=hlg, words=used.words)


def _grammar_fst(grammar: Grammar, symbols: _Symbols) -> StdVectorFst:
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


def _lexicon_fst(
    lexicon: Lexicon, symbols: _Symbols, topology: HMMTopology, penalty: float
) -> tuple[StdVectorFst, int]:
    """Return L, from phones to words, with optional silence at the start and after each word.

    Returns:
        The transducer, and the number of its auxiliary phones.
    """
    start, loop, silence = 0, 1, 2
    fst = _with_states(3)
    no_silence_cost = -math.log1p(-topology.silence)
    fst.add_arc(start, StdArc(EPSILON, EPSILON, no_silence_cost, loop))
    if topology.silence > 0.0:
        silence_cost = -math.log(topology.silence)
        before_loop = fst.add_state()
        fst.add_arc(start, StdArc(EPSILON, EPSILON, silence_cost, silence))
        fst.add_arc(silence, StdArc(symbols.silence, EPSILON, 0.0, before_loop))
        fst.add_arc(before_loop, StdArc(symbols.auxiliary_phone(1), EPSILON, 0.0, loop))
    shared = _shared_prefixes(lexicon)
    next_number: dict[tuple[str, ...], int] = {}
    for word in lexicon.words:
        for phones in lexicon.pronunciations(word):
            labels = [symbols.phones[phone] for phone in phones]
            if phones in shared:
                number = next_number[phones] = next_number.get(phones, 1) + 1
                labels.append(symbols.auxiliary_phone(number))
            end = _add_chain(fst, loop, labels, symbols.words[word], penalty)
            fst.add_arc(end, StdArc(EPSILON, EPSILON, no_silence_cost, loop))
            if topology.silence > 0.0:
                fst.add_arc(end, StdArc(EPSILON, EPSILON, silence_cost, silence))
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


def _add_chain(fst: StdVectorFst, source: int, labels: list[int], output: int, cost: float) -> int:
    """Add a chain of states with these input labels, and return its last state.

    The first arc has the output label and the cost.
    """
    for label in labels:
        target = fst.add_state()
        fst.add_arc(source, StdArc(label, output, cost, target))
        source, output, cost = target, EPSILON, 0.0
    return source


def _hmm_fst(
    senones: SenoneMap, symbols: _Symbols, topology: HMMTopology, auxiliaries: int
) -> StdVectorFst:
    """Return H, from senones to phones: an HMM for each phone, all of which share one state.

    Auxiliary phones have no frames. They become epsilon here, because the graph is not determinised
    after the composition with H.
    """
    hub = 0
    fst = _with_states(1)
    fst.set_final(hub, 0.0)
    for number in range(auxiliaries):
        label = symbols.auxiliary_phone(number)
        fst.add_arc(hub, StdArc(EPSILON, label, 0.0, hub))
    for phone, phone_label in symbols.phones.items():
        ids = senones.of(phone)
        states = [fst.add_state() for _ in ids]
        for target, cost in _entry_costs(topology, len(ids)).items():
            fst.add_arc(hub, StdArc(ids[target] + 1, phone_label, cost, states[target]))
        for i, state in enumerate(states):
            stay = -math.log(topology.self_loop)
            fst.add_arc(state, StdArc(ids[i] + 1, EPSILON, stay, state))
            for target, cost in _exit_costs(topology, i, len(ids)).items():
                if target == len(ids):
                    fst.add_arc(state, StdArc(EPSILON, EPSILON, cost, hub))
                else:
                    arc = StdArc(ids[target] + 1, EPSILON, cost, states[target])
                    fst.add_arc(state, arc)
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst


def _entry_costs(topology: HMMTopology, states: int) -> dict[int, float]:
    """Return the cost of entering a phone at each state. At least one state is not skipped."""
    weights = {i: topology.skip**i * (1.0 - topology.skip) for i in range(states)}
    total = sum(weights.values())
    return {i: -math.log(weight / total) for i, weight in weights.items() if weight > 0.0}


def _exit_costs(topology: HMMTopology, state: int, states: int) -> dict[int, float]:
    """Return the cost from a state to each later one. The exit is the number of states."""
    leave = 1.0 - topology.self_loop
    weights = {j: topology.skip ** (j - state - 1) for j in range(state + 1, states + 1)}
    return {
        j: -math.log(leave * weight * (1.0 if j == states else 1.0 - topology.skip))
        for j, weight in weights.items()
        if weight > 0.0
    }


def _with_states(count: int) -> StdVectorFst:
    """Return a transducer with states 0 to count - 1, of which 0 is the start, and no arcs."""
    fst = StdVectorFst()
    for _ in range(count):
        fst.add_state()
    fst.start = 0
    return fst
