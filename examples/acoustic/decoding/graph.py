"""The decoding graph: HMM states to words, as a composition of transducers H, L and G.

H turns senones into phones, L phones into words (with optional silence), G weighs words. Labels
that tell homophones apart exist only until L and G are composed and determinised. All weights
are costs, minus log probabilities.
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
    """Left-to-right HMM of one phone.

    ``self_loop`` is the probability to stay in a state for one more frame. ``skip`` is the
    probability to pass over a state: models that run at 33 frames/s see phones that are shorter
    than their states are many, so that any state may be missing, but never all of them.
    ``silence`` is the probability of silence before the first word and after each word.
    """

    self_loop: float = 0.5
    skip: float = 0.0
    silence: float = 0.5

    @classmethod
    def for_low_frame_rate(cls) -> HMMTopology:
        """Return what suits three states per phone at 33 frames/s: short stays, states skipped."""
        return cls(self_loop=0.3, skip=0.25)

    def __post_init__(self) -> None:
        """Check that each is a probability, with 0 only where it may be."""
        for name, low in (("self_loop", "("), ("skip", "["), ("silence", "[")):
            value = getattr(self, name)
            if not (0.0 < value < 1.0 or (low == "[" and value == 0.0)):
                raise ValueError(f"{name} must be in {low}0, 1), got {value}")


@dataclass(frozen=True)
class DecodingGraph:
    """The composed transducer; input label = senone + 1, output label = position in words + 1."""

    fst: StdVectorFst
    words: tuple[str, ...]


@dataclass(frozen=True)
class _Symbols:
    """Numbers of phones, words and auxiliary labels. Label 0 is epsilon throughout."""

    phones: Mapping[str, int]
    words: Mapping[str, int]
    silence: int
    backoff_word: int  # stands for "no word" while G is composed with L

    def auxiliary_phone(self, number: int) -> int:
        """0 marks back-off, 1 the end of a silence, 2 and up tell pronunciations apart."""
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
        senones: all states that the acoustic model knows.
        lexicon: pronunciations of at least the grammar's words.
        grammar: which word may follow which.
        topology: transition probabilities of the HMM and of optional silence.
        word_insertion_penalty: added to the cost of each word; may be negative.
        silence_phone: the phone of optional silence.

    Raises:
        KeyError: words of the grammar without pronunciation (all of them are listed).
        ValueError: phones that the senones lack (all of them are listed).
    """
    lexicon.check_words(grammar.words)
    used = lexicon.restricted_to(grammar.words)
    lacking = sorted({*used.phones, silence_phone} - set(senones.phones))
    if lacking:
        raise ValueError(f"phones without senones: {lacking}; the senones know {senones.phones}")
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
    """G: words to words. Back-off reads a label of its own, so that L∘G can be determinised."""
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
    """L: phones to words, silence optional at the start and after each word.

    Returns the transducer and how many auxiliary phones it reads.
    """
    start, loop, quiet = 0, 1, 2
    fst = _with_states(3)
    no_silence_cost = -math.log1p(-topology.silence)
    fst.add_arc(start, StdArc(EPSILON, EPSILON, no_silence_cost, loop))
    if topology.silence > 0.0:
        silence_cost = -math.log(topology.silence)
        before_loop = fst.add_state()
        fst.add_arc(start, StdArc(EPSILON, EPSILON, silence_cost, quiet))
        fst.add_arc(quiet, StdArc(symbols.silence, EPSILON, 0.0, before_loop))
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
                fst.add_arc(end, StdArc(EPSILON, EPSILON, silence_cost, quiet))
    fst.add_arc(loop, StdArc(symbols.auxiliary_phone(0), symbols.backoff_word, 0.0, loop))
    fst.set_final(loop, 0.0)
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst, max(next_number.values(), default=1) + 1


def _shared_prefixes(lexicon: Lexicon) -> set[tuple[str, ...]]:
    """Pronunciations of several words, or with which a longer one begins."""
    counts: dict[tuple[str, ...], int] = {}
    prefixes: set[tuple[str, ...]] = set()
    for word in lexicon.words:
        for phones in lexicon.pronunciations(word):
            counts[phones] = counts.get(phones, 0) + 1
            prefixes.update(phones[:i] for i in range(1, len(phones)))
    return {phones for phones, count in counts.items() if count > 1 or phones in prefixes}


def _add_chain(fst: StdVectorFst, source: int, labels: list[int], output: int, cost: float) -> int:
    """Add a chain of states that reads the labels; the first arc carries output and cost."""
    for label in labels:
        target = fst.add_state()
        fst.add_arc(source, StdArc(label, output, cost, target))
        source, output, cost = target, EPSILON, 0.0
    return source


def _hmm_fst(
    senones: SenoneMap, symbols: _Symbols, topology: HMMTopology, auxiliaries: int
) -> StdVectorFst:
    """H: senones to phones, one HMM per phone around a common state.

    Auxiliary phones are read here and cost no frame; nothing is determinised after H, so they
    can become epsilon at once.
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
    """Cost to enter a phone at each state; passing over all of them is excluded."""
    weights = {i: topology.skip**i * (1.0 - topology.skip) for i in range(states)}
    total = sum(weights.values())
    return {i: -math.log(weight / total) for i, weight in weights.items() if weight > 0.0}


def _exit_costs(topology: HMMTopology, state: int, states: int) -> dict[int, float]:
    """Cost to go from a state to each later one; the number of states stands for the exit."""
    leave = 1.0 - topology.self_loop
    weights = {j: topology.skip ** (j - state - 1) for j in range(state + 1, states + 1)}
    return {
        j: -math.log(leave * weight * (1.0 if j == states else 1.0 - topology.skip))
        for j, weight in weights.items()
        if weight > 0.0
    }


def _with_states(count: int) -> StdVectorFst:
    """Return an empty transducer with states 0 .. count - 1, started at 0."""
    fst = StdVectorFst()
    for _ in range(count):
        fst.add_state()
    fst.start = 0
    return fst
