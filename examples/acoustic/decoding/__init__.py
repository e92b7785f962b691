"""Hybrid decoding of senone log likelihoods to words, by weighted finite-state transducers."""

from examples.acoustic.decoding.decoder import WFSTDecoder
from examples.acoustic.decoding.graph import DecodingGraph, HMMTopology, build_graph
from examples.acoustic.decoding.language_model import BigramModel, Grammar, GrammarArc
from examples.acoustic.decoding.priors import log_priors, scaled_likelihoods

__all__ = [
    "BigramModel",
    "DecodingGraph",
    "Grammar",
    "GrammarArc",
    "HMMTopology",
    "WFSTDecoder",
    "build_graph",
    "log_priors",
    "scaled_likelihoods",
]
